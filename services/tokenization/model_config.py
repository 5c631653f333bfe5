"""What a model folder's configuration files say about its tokenizer."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.tokenization.errors import ModelFilesError

# Transformers writes a number like 1e30 where a tokenizer sets no limit.
_LONGEST_CREDIBLE = 100_000_000


@dataclass(frozen=True)
class TokenizerConfig:
    bos_token: str  # "" for none
    eos_token: str
    eos_token_ids: frozenset[int]  # as the generation or model configuration lists them
    max_model_len: int  # tokens
    chat_template: str  # Jinja source, "" for none


def read_tokenizer_config(folder: Path) -> TokenizerConfig:
    """Raises ModelFilesError when a file is no JSON object or no file tells the context length."""
    tokenizer = _read(folder / "tokenizer_config.json")
    model = _read(folder / "config.json")
    generation = _read(folder / "generation_config.json")
    return TokenizerConfig(
        bos_token=_token_text(tokenizer.get("bos_token")),
        eos_token=_token_text(tokenizer.get("eos_token")),
        eos_token_ids=_ids(generation.get("eos_token_id", model.get("eos_token_id"))),
        max_model_len=_max_model_len(folder, model, tokenizer),
        chat_template=_chat_template(folder, tokenizer),
    )


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise ModelFilesError(f"{path} is not valid JSON ({error}); fetch the model again") from error
    if not isinstance(content, dict):
        raise ModelFilesError(f"{path} holds no JSON object; fetch the model again")
    return content


def _token_text(token: Any) -> str:
    # Older files hold an object with the token's matching options instead of its text.
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else ""


def _ids(value: Any) -> frozenset[int]:
    if value is None:
        return frozenset()
    return frozenset(value) if isinstance(value, list) else frozenset({int(value)})


def _max_model_len(folder: Path, model: dict[str, Any], tokenizer: dict[str, Any]) -> int:
    for length in (model.get("max_position_embeddings"), tokenizer.get("model_max_length")):
        if length is not None and 0 < length < _LONGEST_CREDIBLE:
            return int(length)
    raise ModelFilesError(
        f"model folder {folder} tells no context length; set max_position_embeddings in its config.json"
    )


def _chat_template(folder: Path, tokenizer: dict[str, Any]) -> str:
    own_file = folder / "chat_template.jinja"
    if own_file.is_file():
        return own_file.read_text(encoding="utf-8")
    template = tokenizer.get("chat_template") or ""
    if isinstance(template, list):  # several named templates
        return next((str(each["template"]) for each in template if each.get("name") == "default"), "")
    return str(template)
