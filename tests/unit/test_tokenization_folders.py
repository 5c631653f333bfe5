"""Model folders in Hugging Face's layout: what is read from which file, and what is refused how."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, decoders, models
from tokenizers import Tokenizer as Backend

from services.detokenizer.incremental_text import IncrementalText
from services.tokenization.errors import ChatTemplateError, ModelFilesError
from services.tokenization.source import resolve_model
from services.tokenization.tokenizer import Tokenizer

SENTENCEPIECE = [
    "<unk>",
    "</s>",
    "▁Hello",
    "▁world",
    "!",
    "▁",
    "x",
    "\n",
    "▁▁code",
    *(f"<0x{byte:02X}>" for byte in "한".encode()),
]
B026 = ["▁Hello", "▁world", "!", "▁", "▁", "x", "\n", "▁▁code"]


def make_folder(folder: Path, *, decoder: Any = None, **files: Any) -> Path:
    vocabulary = {token: index for index, token in enumerate(SENTENCEPIECE)}
    backend = Backend(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True))
    backend.decoder = decoder or decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens([AddedToken("</s>", special=True)])
    folder.mkdir(exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    contents = {"config": {"max_position_embeddings": 64}, "tokenizer_config": {"eos_token": "</s>"}} | files
    for name, content in contents.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


@pytest.fixture
def sentencepiece(tmp_path: Path) -> Tokenizer:
    return Tokenizer.load(str(make_folder(tmp_path / "tiny-llama")))


def ids_of(tokens: list[str]) -> list[int]:
    return [SENTENCEPIECE.index(token) for token in tokens]


def test_a_folder_is_served_under_its_name(sentencepiece: Tokenizer) -> None:
    assert sentencepiece.name == "tiny-llama"
    assert sentencepiece.max_model_len == 64
    assert sentencepiece.eos_token_ids == {1}
    assert sentencepiece.bos_token_id is None


def test_b026_sentencepiece_keeps_every_space_between_tokens(sentencepiece: Tokenizer) -> None:
    text = IncrementalText()
    pieces = [text.push(sentencepiece.token_bytes(each)) for each in ids_of(B026)]
    assert "".join(pieces) + text.finish() == " Hello world!  x\n  code"
    assert sentencepiece.decode(ids_of(B026)) == "Hello world!  x\n  code"  # a whole text: as the library does it


def test_b026_output_after_a_prompt_is_what_the_whole_decode_gains(sentencepiece: Tokenizer) -> None:
    prompt, output = ids_of(["▁Hello", "!"]), ids_of(B026)
    gained = sentencepiece.decode(prompt + output).removeprefix(sentencepiece.decode(prompt))
    assert sentencepiece.join(output).decode() == gained


def test_sentencepiece_bytes_make_up_characters(sentencepiece: Tokenizer) -> None:
    byte_tokens = [f"<0x{byte:02X}>" for byte in "한".encode()]
    assert [sentencepiece.token_bytes(each) for each in ids_of(byte_tokens)] == [
        bytes((byte,)) for byte in "한".encode()
    ]
    assert sentencepiece.decode(ids_of(["▁Hello", *byte_tokens, "x"])) == "Hello한x"


def test_a_metaspace_decoder_reads_alike(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(str(make_folder(tmp_path / "m", decoder=decoders.Metaspace())))
    assert tokenizer.decode(ids_of(B026)) == "Hello world!  x\n  code"
    kept = Tokenizer.load(str(make_folder(tmp_path / "n", decoder=decoders.Metaspace(prepend_scheme="never"))))
    assert kept.decode(ids_of(B026)) == " Hello world!  x\n  code"


def test_another_spelling_of_tokens_is_refused_at_load(tmp_path: Path) -> None:
    with pytest.raises(ModelFilesError, match="WordPiece"):
        Tokenizer.load(str(make_folder(tmp_path / "bert", decoder=decoders.WordPiece())))


def test_eos_ids_come_from_generation_config_and_tokenizer(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "m", generation_config={"eos_token_id": [5, 6]}, config={"eos_token_id": 7})
    with pytest.raises(ModelFilesError, match="max_position_embeddings"):
        Tokenizer.load(str(folder))
    folder = make_folder(folder, config={"eos_token_id": 7, "max_position_embeddings": 8})
    assert Tokenizer.load(str(folder)).eos_token_ids == {1, 5, 6}


@pytest.mark.parametrize(
    "template", ["{{ messages[0].content }}|{{ eos_token }}", [{"name": "default", "template": "{{ eos_token }}"}]]
)
def test_chat_templates_of_both_forms(tmp_path: Path, template: Any) -> None:
    config = {"eos_token": {"content": "</s>"}, "chat_template": template}
    tokenizer = Tokenizer.load(str(make_folder(tmp_path / "m", tokenizer_config=config)))
    assert tokenizer.render_chat([{"role": "user", "content": "hi"}]).endswith("</s>")


def test_a_chat_template_file_wins(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "m")
    (folder / "chat_template.jinja").write_text("{{ messages[0].content | tojson }}")
    assert Tokenizer.load(str(folder)).render_chat([{"role": "user", "content": "<é>"}]) == '"<é>"'


def test_a_model_without_chat_template_says_so(sentencepiece: Tokenizer) -> None:
    with pytest.raises(ChatTemplateError, match="tiny-llama has no chat template"):
        sentencepiece.render_chat([{"role": "user", "content": "hi"}])


@pytest.mark.parametrize(
    "template",
    ["{{ raise_exception('only user messages') }}", "{{ 'x' + messages[0].content }}", "{{ ''.__class__.mro() }}"],
)
def test_a_template_that_refuses_or_escapes_is_an_error_without_the_content(tmp_path: Path, template: str) -> None:
    folder = make_folder(tmp_path / "m", tokenizer_config={"chat_template": template})
    with pytest.raises(ChatTemplateError) as error:
        Tokenizer.load(str(folder)).render_chat([{"role": "user", "content": ["a secret"]}])
    assert "secret" not in str(error.value)


def test_what_a_folder_lacks_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelFilesError, match=r"lacks tokenizer\.json"):
        resolve_model(str(tmp_path))


@pytest.mark.parametrize(("name", "says"), [("no such", "no model 'no such'"), ("README.txt", "not a .gguf file")])
def test_a_model_that_is_none_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, says: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "README.txt").touch()
    with pytest.raises(ModelFilesError, match=says):
        resolve_model(name)


def test_a_broken_gguf_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENPATH_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelFilesError, match=r"m\.gguf is not a readable GGUF file"):
        Tokenizer.load(str(tmp_path / "m.gguf"))


def test_a_broken_tokenizer_file_is_named(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "m")
    (folder / "tokenizer.json").write_text('{"model": 1}')
    with pytest.raises(ModelFilesError, match=r"m/tokenizer\.json"):
        Tokenizer.load(str(folder))


def test_without_a_network_a_hub_name_is_a_clear_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelFilesError, match=r"'tokenpath-test/none' .*give the path of a model folder"):
        resolve_model("tokenpath-test/none")
