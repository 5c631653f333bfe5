"""What a request may say, and how a mistake is named."""

import json
from typing import Any

import pytest

from services.gateway.errors import ApiError
from services.gateway.validation.chat import ChatBody
from services.gateway.validation.completions import CompletionsBody
from services.gateway.validation.parse import parse_chat, parse_completions

MODEL = "m"


def chat(**fields: Any) -> ChatBody:
    question = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
    return parse_chat(json.dumps(question | fields).encode(), MODEL)


def completion(**fields: Any) -> CompletionsBody:
    return parse_completions(json.dumps({"model": MODEL, "prompt": "hi"} | fields).encode(), MODEL)


def refused(make: Any, **fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        make(**fields)
    assert "Error" not in caught.value.message
    assert "Traceback" not in caught.value.message
    return caught.value


@pytest.mark.parametrize("make", [chat, completion])
@pytest.mark.parametrize("value", [0, -1, "5", 1.5, True, 2**70])
def test_b009_a_limit_that_is_no_positive_integer_is_refused_by_name(make: Any, value: Any) -> None:
    error = refused(make, max_tokens=value)
    assert error.http_status == 400
    assert error.param == "max_tokens"


@pytest.mark.parametrize("make", [chat, completion])
def test_b009_null_means_the_default_everywhere(make: Any) -> None:
    fields = [name for name in ChatBody.model_fields if name not in ("model", "messages", "prompt")]
    body = make(**dict.fromkeys(fields))
    assert body.token_limit is None
    assert body.stop == ()
    assert body.logit_bias == {}
    assert make(max_tokens=1).token_limit == 1


def test_the_newer_limit_wins_when_both_are_given() -> None:
    assert chat(max_tokens=5, max_completion_tokens=7).token_limit == 7


@pytest.mark.parametrize("stop", ["", [""], ["a", ""], ["a"] * 5, [], 5, [5], {"a": 1}, "a" * 16_385])
def test_b007_stop_takes_one_to_four_strings_that_are_not_empty(stop: Any) -> None:
    assert refused(chat, stop=stop).param == "stop"


def test_b007_stop_forms_that_are_fine() -> None:
    assert chat(stop="x").stop == ("x",)
    assert completion(stop=["a", "b", "c", "d"]).stop == ("a", "b", "c", "d")
    assert chat(stop=None).stop == ()
    assert chat(stop="a" * 10_000).stop == ("a" * 10_000,)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -1),
        ("temperature", 2.1),
        ("temperature", "1"),
        ("temperature", True),
        ("top_p", 0),
        ("top_p", 1.1),
        ("min_p", -0.1),
        ("top_k", -2),
        ("frequency_penalty", 10),
        ("presence_penalty", -2.1),
        ("repetition_penalty", 0),
        ("seed", 2**63),
        ("seed", 1.0),
        ("n", 0),
        ("n", 129),
        ("n", 10**6),
        ("min_tokens", -1),
        ("ignore_eos", "yes"),
        ("stream", "true"),
        ("user", 5),
        ("logit_bias", {"x": 1}),
        ("logit_bias", {"5": 101}),
        ("logit_bias", [5]),
        ("logit_bias", {str(token): 1 for token in range(1025)}),
        ("stop_token_ids", 5),
        ("stop_token_ids", list(range(1025))),
        ("stream_options", "x"),
    ],
)
def test_b011_b013_out_of_range_or_of_another_type_is_refused_by_name(field: str, value: Any) -> None:
    error = refused(chat, **{field: value})
    assert error.http_status == 400
    assert error.param == field


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e400"])
def test_b011_numbers_that_json_does_not_have_are_refused(number: str) -> None:
    raw = f'{{"model":"m","messages":[{{"role":"user","content":"x"}}],"temperature":{number}}}'
    with pytest.raises(ApiError, match="not valid JSON"):
        parse_chat(raw.encode(), MODEL)


@pytest.mark.parametrize("temperature", [0, 1e-9, 2, 0.7])
def test_b011_ends_of_the_range_are_fine(temperature: float) -> None:
    assert chat(temperature=temperature).temperature == temperature


def test_b001_stream_options_need_stream() -> None:
    assert refused(chat, stream_options={"include_usage": True}).param == "stream_options"
    assert refused(chat, stream=False, stream_options={}).param == "stream_options"
    assert chat(stream=True, stream_options={}).stream_options is not None
    assert chat(stream=False, stream_options=None).stream_options is None


@pytest.mark.parametrize("prompt", ["", [], [[]], [""], ["a", ""], [[1], []], None, 5, [1, "a"], [True], [[1.5]], [-1]])
def test_b015_a_prompt_that_is_empty_or_of_another_kind_is_refused(prompt: Any) -> None:
    assert refused(completion, prompt=prompt).param == "prompt"


@pytest.mark.parametrize(
    ("prompt", "parsed"),
    [("a", ("a",)), (["a", "b"], ("a", "b")), ([1, 2], ((1, 2),)), ([[1], [2, 3]], ((1,), (2, 3)))],
)
def test_the_four_forms_of_a_prompt(prompt: Any, parsed: Any) -> None:
    assert completion(prompt=prompt).prompt == parsed


def test_b015_messages_may_have_empty_content_but_not_be_missing() -> None:
    assert refused(chat, messages=[]).param == "messages"
    assert refused(chat, messages=None).param == "messages"
    assert chat(messages=[{"role": "user", "content": ""}]).messages[0]["content"] == ""
    assert chat(messages=[{"role": "system", "content": "x"}]).messages[0]["role"] == "system"


def test_b021_all_forms_of_a_text_are_the_same_message() -> None:
    plain = chat(messages=[{"role": "user", "content": "one two"}]).messages
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    assert chat(messages=[{"role": "user", "content": parts}]).messages == plain
    assert chat(messages=[{"role": "user", "content": "one two", "tool_calls": []}]).messages == plain
    assert chat(messages=[{"role": "user", "content": "one two", "tool_calls": None, "name": None}]).messages == plain


def test_b021_tool_messages_are_passed_to_the_template() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = chat(
        messages=[
            {"role": "developer", "content": "d"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "42", "tool_call_id": "1"},
        ]
    ).messages
    assert [message["role"] for message in messages] == ["system", "assistant", "tool"]
    assert messages[1]["tool_calls"] == [call]


@pytest.mark.parametrize(
    ("message", "path"),
    [
        ("hi", "messages[0]"),
        ({"content": "x"}, "messages[0].role"),
        ({"role": "wizard", "content": "x"}, "messages[0].role"),
        ({"role": ["user"], "content": "x"}, "messages[0].role"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": None}, "messages[0].content"),
        ({"role": "assistant", "content": None, "tool_calls": []}, "messages[0].content"),
        ({"role": "user", "content": 5}, "messages[0].content"),
        ({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]}, "messages[0].content[1]"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text"),
        ({"role": "user", "content": ["a"]}, "messages[0].content[0]"),
        ({"role": "user", "content": "x", "tool_calls": [{}]}, "messages[0].tool_calls"),
        ({"role": "assistant", "content": "x", "tool_calls": [{}]}, "messages[0].tool_calls[0]"),
        ({"role": "tool", "content": "x", "tool_call_id": 5}, "messages[0].tool_call_id"),
    ],
)
def test_b021_a_message_that_can_not_be_rendered_is_refused_with_its_path(message: Any, path: str) -> None:
    assert refused(chat, messages=[message]).param == path


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tools", [{"type": "function"}]),
        ("tool_choice", "auto"),
        ("functions", [{}]),
        ("response_format", {"type": "json_object"}),
        ("guided_json", {}),
        ("structured_outputs", {"regex": "a"}),
        ("audio", {"voice": "x"}),
        ("modalities", ["audio"]),
    ],
)
def test_what_can_not_be_honoured_is_refused_by_name(field: str, value: Any) -> None:
    error = refused(chat, **{field: value})
    assert error.param == field
    assert error.code == "unsupported_parameter"


def test_harmless_uses_of_unsupported_fields_are_fine() -> None:
    chat(tools=[], tool_choice="none", response_format={"type": "text"}, functions=None, modalities=["text"])
    completion(echo=False, best_of=1, suffix=None)


@pytest.mark.parametrize(("field", "value"), [("echo", True), ("best_of", 2), ("suffix", "x")])
def test_completions_fields_that_can_not_be_honoured(field: str, value: Any) -> None:
    assert refused(completion, **{field: value}).param == field


def test_unknown_fields_are_ignored() -> None:
    chat(service_tier="auto", priority=3, kv_transfer_params={}, whatever=[1])


def test_logprobs_rules_of_both_endpoints() -> None:
    assert chat().top_logprobs_wanted is None
    assert chat(logprobs=True).top_logprobs_wanted == 0
    assert chat(logprobs=True, top_logprobs=20).top_logprobs_wanted == 20
    assert refused(chat, top_logprobs=2).param == "top_logprobs"
    assert refused(chat, logprobs=True, top_logprobs=21).param == "top_logprobs"
    assert refused(chat, logprobs=3).param == "logprobs"
    wanted = {None: None, False: None, True: 1, 5: 5}
    assert {value: completion(logprobs=value).top_logprobs_wanted for value in wanted} == wanted
    assert completion(logprobs=0).top_logprobs_wanted == 0
    assert refused(completion, logprobs=21).param == "logprobs"


@pytest.mark.parametrize("raw", [b"{", b"[]", b"null", b'"x"', b"", b"\xef\xbb\xbf{}", b"[" * 10_000, b'{"a":"\xff"}'])
def test_b017_b020_a_body_that_is_no_json_object_is_refused(raw: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        parse_chat(raw, MODEL)
    assert caught.value.http_status == 400
    assert "Error" not in caught.value.message


def test_b020_a_lone_surrogate_is_refused_and_a_pair_is_a_character() -> None:
    template = '{"model":"m","messages":[{"role":"user","content":"%s"}],"stop":["%s"]}'
    body = parse_chat((template % (r"\ud83d\ude00", "x")).encode(), MODEL)
    assert body.messages[0]["content"] == "😀"
    for content, stop in ((r"\ud800", "x"), ("x", r"\ud800"), (r"\ude00\ud83d", "x")):
        with pytest.raises(ApiError):
            parse_chat((template % (content, stop)).encode(), MODEL)


@pytest.mark.parametrize("name", ["nope", "", "M", "m ", "x" * 100_000])
def test_b019_another_model_is_not_found_and_hardly_echoed(name: str) -> None:
    error = refused(chat, model=name)
    assert error.http_status == 404
    assert error.code == "model_not_found"
    assert len(error.message) < 200


@pytest.mark.parametrize("name", [None, 5, ["m"]])
def test_b019_no_model_is_a_mistake(name: Any) -> None:
    error = refused(chat, model=name)
    assert error.http_status == 400
    assert error.param == "model"
