"""Sequences join and leave at every step, get what they are due, and lose nothing when memory runs out."""

from __future__ import annotations

import pytest

from services.engine.outcome import ABORTED
from tests.unit.engine_core_helpers import EOS, Driven, new_runner, request


def script(text: str, **keys: object) -> str:
    import json

    return "SCRIPT:" + json.dumps({"text": text, **keys})


def test_says_the_script_and_stops_at_eos() -> None:
    driven = Driven.new()
    driven.add(request("R", script("hello")))
    driven.run()
    assert driven.text("R/0") == "hello"
    assert driven.tokens["R/0"][-1] == EOS
    assert driven.finished == {"R/0": "stop"}


def test_max_tokens_ends_by_length_and_ignore_eos_goes_on() -> None:
    driven = Driven.new()
    driven.add(request("short", script("hello"), max_tokens=3))
    driven.add(request("on", script("ab"), max_tokens=6, ignore_eos=True))
    driven.run()
    assert driven.text("short/0") == "hel"
    assert len(driven.tokens["on/0"]) == 6
    assert driven.finished == {"short/0": "length", "on/0": "length"}


def test_stop_token_counts_and_waits_for_min_tokens() -> None:
    driven = Driven.new()
    driven.add(request("now", script("abcabc"), stop_token_ids=(ord("b"),)))
    driven.add(request("later", script("abcabc"), stop_token_ids=(ord("b"),), min_tokens=3))
    driven.run()
    assert driven.text("now/0") == "ab"
    assert driven.text("later/0") == "abcab"


def test_decodes_go_on_while_a_long_prompt_is_computed_in_chunks() -> None:
    driven = Driven.new(step_tokens=32)
    driven.add(request("running", script("x" * 40)))
    driven.step()
    while "running/0" not in driven.tokens:
        driven.step()
    driven.add(request("long", "y" * 300, max_tokens=1))
    before = len(driven.tokens["running/0"])
    steps = 0
    while "long/0" not in driven.tokens:
        driven.step()
        steps += 1
    assert steps >= 300 // 32
    assert len(driven.tokens["running/0"]) - before == min(steps, 40 - before)
    assert all(o.step is None or o.step.prefill_tokens <= 32 for o in driven.outcomes)


def test_a_short_prompt_is_not_held_up_by_the_whole_of_a_long_one() -> None:
    driven = Driven.new(runner=new_runner(blocks=128), step_tokens=64)
    driven.add(request("long", "y" * 1000, max_tokens=1))
    driven.add(request("short", "z" * 10, max_tokens=1))
    driven.step()
    assert "short/0" in driven.tokens
    assert "long/0" not in driven.tokens


def test_the_running_batch_is_bounded_and_first_come_first_served() -> None:
    driven = Driven.new(max_num_seqs=2)
    for name in "abc":
        driven.add(request(name, script("xy")))
    ends: list[str] = []
    while driven.step():
        assert driven.core.load.running <= 2
        ends += [name for name in driven.finished if name not in ends]
    assert ends == ["a/0", "b/0", "c/0"]


def test_b047_preempted_sequences_lose_and_repeat_nothing() -> None:
    """Pool too small for three long answers at once: all finish, with the text of an undisturbed run."""
    texts = {name: "".join(chr(ord("a") + (number * step) % 26) for number in range(150)) for name, step in
             (("one", 1), ("two", 3), ("three", 5))}  # fmt: skip
    driven = Driven.new(runner=new_runner(blocks=30, block_size=16))
    for name, text in texts.items():
        driven.add(request(name, script(text)))
    driven.run()
    assert {name: driven.text(f"{name}/0") for name in texts} == texts
    assert set(driven.finished.values()) == {"stop"}
    assert 1 <= driven.core.load.preemptions <= 6
    assert driven.core.load.usage.used == 0


def test_b045_a_sequence_that_grows_to_the_end_of_the_pool_ends_and_others_finish() -> None:
    driven = Driven.new(runner=new_runner(blocks=8, block_size=16), max_model_len=8 * 16)
    driven.add(request("grows", "p" * 20, max_tokens=1000))
    for number in range(5):
        driven.add(request(f"small{number}", script("ok")))
    driven.run()
    assert driven.finished["grows/0"] == "length"
    assert len(driven.tokens["grows/0"]) == 8 * 16 - 20
    assert [driven.text(f"small{number}/0") for number in range(5)] == ["ok"] * 5


def test_abort_frees_blocks_before_the_next_step() -> None:
    driven = Driven.new()
    driven.add(request("R", script("x" * 100)))
    driven.step()
    driven.step()
    driven.core.abort("R/0")
    assert driven.core.load.usage.used == 0
    assert driven.core.load.running == 0
    driven.run()
    assert driven.finished == {"R/0": ABORTED}


def test_choices_share_the_prompt_and_are_counted_once() -> None:
    driven = Driven.new(step_tokens=256)
    prompt = "SCRIPT:" + '{"choices":[{"text":"a"},{"text":"bb"},{"text":"ccc"}]}' + " " * 40
    driven.add(request("R", prompt, choices=(0, 1, 2)))
    driven.run()
    assert [driven.text(f"R/{index}") for index in range(3)] == ["a", "bb", "ccc"]
    computed = sum(outcome.step.prefill_tokens for outcome in driven.outcomes if outcome.step)
    full_pages = len(prompt) // 16 * 16
    assert computed == len(prompt) + 2 * (len(prompt) - full_pages)


def test_choices_survive_the_abort_of_the_one_that_computes_their_prompt() -> None:
    driven = Driven.new(step_tokens=8, max_num_seqs=8)
    driven.add(request("R", script("answer"), choices=(0, 1)))
    driven.step()
    driven.core.abort("R/0")
    driven.run()
    assert driven.text("R/1") == "answer"


def test_prefix_cache_spares_full_pages_of_the_same_tenant_only() -> None:
    driven = Driven.new()
    prompt = "shared prefix, long enough for several pages of sixteen"
    for name, salt in (("cold", "t1"), ("warm", "t1"), ("other", "t2")):
        driven.add(request(name, prompt, max_tokens=1, salt=salt))
        driven.run()
    cached = [emission.cached_tokens for outcome in driven.outcomes for emission in outcome.emissions]
    assert cached == [0, len(prompt) // 16 * 16, 0]


def test_b044_a_fully_cached_prompt_still_computes_its_last_token() -> None:
    driven = Driven.new()
    for name in ("cold", "warm"):
        driven.add(request(name, "x" * 32, max_tokens=1))
        driven.run()
    cached = [emission.cached_tokens for outcome in driven.outcomes for emission in outcome.emissions]
    assert cached == [0, 16]


@pytest.mark.parametrize("keys", [{"fail_after": 2}, {"fail_after": 0}])
def test_a_failing_sequence_leaves_its_neighbours_alone(keys: dict[str, int]) -> None:
    driven = Driven.new()
    driven.add(request("bad", script("abcdef", **keys)))
    driven.add(request("good", script("abcdef")))
    driven.run()
    assert driven.text("bad/0") == "abcdef"[: keys["fail_after"]]
    assert "script fails" in driven.failures["bad/0"]
    assert driven.text("good/0") == "abcdef"
    assert driven.core.load.usage.used == 0


def test_a_hanging_sequence_leaves_its_neighbours_alone() -> None:
    driven = Driven.new()
    driven.add(request("stuck", script("abcdef", hang_after=2)))
    driven.add(request("good", script("abcdef")))
    driven.run()
    assert driven.text("stuck/0") == "ab"
    assert driven.text("good/0") == "abcdef"
    assert driven.core.load.running == 1
