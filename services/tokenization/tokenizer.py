"""Stage 1: text -> token ids, and back, with the model's own tokenizer. No torch, one object for all threads."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer as BackendTokenizer

from services.tokenization.chat_template import ChatTemplate
from services.tokenization.errors import ChatTemplateError, ModelFilesError
from services.tokenization.gguf_tokenizer import ensure_tokenizer_files
from services.tokenization.model_config import TokenizerConfig, read_tokenizer_config
from services.tokenization.source import resolve_model
from services.tokenization.token_bytes import strips_leading_space, token_byte_table
from services.tokenization.utf8 import LONGEST_TAIL, incomplete_tail


class Tokenizer:
    """A model's tokenizer. Immutable after load, so threads and tasks may share it."""

    def __init__(self, name: str, definition: bytes, config: TokenizerConfig) -> None:
        """`definition` is the content of tokenizer.json. Raises ModelFilesError."""
        parsed: dict[str, Any] = json.loads(definition)
        # A request is encoded as it is: what does not fit is refused by the gateway, never cut or padded here.
        self._backend = BackendTokenizer.from_str(definition.decode())
        self._backend.no_truncation()
        self._backend.no_padding()
        decoder: Mapping[str, Any] = parsed.get("decoder") or {}
        added = {token["id"]: token for token in parsed.get("added_tokens", ())}
        self._bytes = token_byte_table(
            self._backend.get_vocab(with_added_tokens=True),
            {token_id: token["content"] for token_id, token in added.items()},
            decoder,
        )
        self._special = frozenset(token_id for token_id, token in added.items() if token["special"])
        self._strips_leading_space = strips_leading_space(decoder)
        self.name = name  # as served
        self.fingerprint = hashlib.blake2b(definition, digest_size=16).hexdigest()
        self.vocab_size = len(self._bytes)  # ids are 0 to vocab_size - 1; a model's head may be padded beyond
        self.max_token_bytes = max(map(len, self._bytes), default=0)
        self.max_model_len = config.max_model_len  # tokens of prompt and output together
        self.bos_token_id = self._backend.token_to_id(config.bos_token) if config.bos_token else None
        self.eos_token_ids = self._eos_token_ids(config)
        self._chat_template = (
            ChatTemplate(config.chat_template, bos_token=config.bos_token, eos_token=config.eos_token)
            if config.chat_template
            else None
        )

    @classmethod
    def load(cls, model: str) -> Tokenizer:
        """The tokenizer of `model` as `resolve_model` understands it. Raises ModelFilesError. Reads files: seconds."""
        files = resolve_model(model, weights=False)
        if files.gguf_path is not None:
            ensure_tokenizer_files(files.gguf_path, files.folder)
        path = files.folder / "tokenizer.json"
        try:
            return cls(files.name, path.read_bytes(), read_tokenizer_config(files.folder))
        except ModelFilesError:
            raise
        except Exception as error:  # the tokenizers library raises plain Exception for a file that it can't read
            raise ModelFilesError(f"cannot read tokenizer {path}: {error}; fetch the model again") from error

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of `text`.

        Pass False for the text of a chat template, which holds its special tokens already. Text that spells a special
        token becomes that token wherever it came from, so a chat message can contain control tokens: this is what
        Hugging Face and vLLM do, and ids have to equal theirs. Raises UnicodeEncodeError for a lone surrogate.
        """
        ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token stands for, b"" for an id that no token has (a padded head may produce one)."""
        return self._bytes[token_id] if 0 <= token_id < self.vocab_size else b""

    def is_special(self, token_id: int) -> bool:
        """Whether this is a control token, whose text is not part of an answer."""
        return token_id in self._special

    def join(self, token_ids: Iterable[int], *, keep_special: bool = False) -> bytes:
        """The tokens' bytes put together: what they add to a text that goes before them."""
        if keep_special:
            return b"".join(map(self.token_bytes, token_ids))
        special = self._special
        return b"".join(self.token_bytes(token_id) for token_id in token_ids if token_id not in special)

    def decode(self, token_ids: Iterable[int], keep_special: bool = False) -> str:
        """A whole text from its first token on. Bytes that are no UTF-8 become U+FFFD.

        SentencePiece encodes a text with a space put in front, which is dropped here and only here: in text that goes
        on after a prompt the same space is the model's own.
        """
        text = self.join(token_ids, keep_special=keep_special).decode("utf-8", "replace")
        return text.removeprefix(" ") if self._strips_leading_space else text

    def prompt_tail(self, token_ids: Sequence[int]) -> bytes:
        """The prompt's last 0 to 3 bytes when they are an unfinished character, which the output may finish."""
        tail = b""
        for token_id in reversed(token_ids):
            tail = self.token_bytes(token_id) + tail
            if len(tail) >= LONGEST_TAIL:
                break
        return incomplete_tail(tail)

    def render_chat(self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True) -> str:
        """Messages of JSON values (`role`, `content`, ...) -> the prompt's text. Raises ChatTemplateError."""
        if self._chat_template is None:
            raise ChatTemplateError(f"model {self.name} has no chat template; use /v1/completions")
        return self._chat_template.render(messages, add_generation_prompt=add_generation_prompt)

    def _eos_token_ids(self, config: TokenizerConfig) -> frozenset[int]:
        by_name = self._backend.token_to_id(config.eos_token) if config.eos_token else None
        return config.eos_token_ids | (frozenset() if by_name is None else {by_name})
