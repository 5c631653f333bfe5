"""What the scripted engine is told to say: `SCRIPT:{...}` inside the prompt.

| key | meaning |
|---|---|
| `pieces` | texts, each exactly one token of the tokenizer |
| `tokens` | token ids |
| `bytes` | hex digits, one single-byte token each |
| `text` | any text, encoded as the tokenizer likes |
| `repeat` | say the above so many times |
| `finish` | `stop` (default): end with the end-of-sequence token; `length`: just end |
| `ttft_ms`, `itl_ms` | delay of the first token, and between tokens |
| `fail_after`, `hang_after` | after so many tokens, fail with INTERNAL or say nothing more |
| `choices` | a list of such objects, one a choice; what they leave out comes from around them |
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import grpc

from services.platform.failures import Failure

MARK = "SCRIPT:"
_MOST_TOKENS = 1_000_000
_KEYS = {"pieces", "tokens", "bytes", "text", "repeat", "finish", "ttft_ms", "itl_ms", "fail_after", "hang_after"}


class Vocabulary(Protocol):
    """What a script needs of a tokenizer."""

    vocab_size: int

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...

    def decode(self, token_ids: Iterable[int], keep_special: bool = False) -> str: ...

    def token_bytes(self, token_id: int) -> bytes: ...

    def is_special(self, token_id: int) -> bool: ...


@dataclass(frozen=True, slots=True)
class Script:
    """One choice's lines."""

    token_ids: tuple[int, ...]
    finish: Literal["stop", "length", "never"]
    """After the last token: the end-of-sequence token, the end, or the first token again."""
    ttft_s: float = 0.0
    itl_s: float = 0.0
    fail_after: int | None = None
    hang_after: int | None = None


class ScriptReader:
    """Finds scripts in prompts. Raises Failure (INVALID_ARGUMENT) for a script that can't be said."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._id_of: dict[bytes, int] = {}
        ids = range(vocabulary.vocab_size)
        for token_id in sorted(ids, key=vocabulary.is_special):  # a plain token before a special one of the same text
            self._id_of.setdefault(vocabulary.token_bytes(token_id), token_id)

    def read(self, prompt_ids: Sequence[int], choice: int) -> Script:
        """The last script in the prompt; without one, ` tok<number>` for as long as the caller wants."""
        text = self._vocabulary.decode(prompt_ids, keep_special=True)
        _, mark, rest = text.rpartition(MARK + "{")
        if not mark:
            return self._filler(prompt_ids)
        try:
            fields, _ = json.JSONDecoder().raw_decode("{" + rest)
        except json.JSONDecodeError as error:
            raise _refused(f"is not JSON: {error.msg} at character {error.pos}") from None
        except (ValueError, RecursionError):
            raise _refused("has a number that is too long, or is nested too deeply") from None
        choices = fields.pop("choices", None)
        if choices is not None:
            if not (isinstance(choices, list) and choices and all(isinstance(entry, dict) for entry in choices)):
                raise _refused("has choices that are no list of objects")
            fields |= choices[choice % len(choices)]
        return self._script(fields)

    def _filler(self, prompt_ids: Sequence[int]) -> Script:
        first = zlib.crc32(repr(tuple(prompt_ids)).encode()) % 1000
        text = "".join(f" tok{number}" for number in range(first, first + 64))
        return Script(tuple(self._encode(text)), "never")

    def _script(self, fields: dict[str, Any]) -> Script:
        if unknown := sorted(fields.keys() - _KEYS):
            raise _refused(f"has an unknown key {unknown[0]!r}; known are {', '.join(sorted(_KEYS))}, choices")
        finish = fields.get("finish", "stop")
        if finish not in ("stop", "length"):
            raise _refused(f"has finish {finish!r}; it must be stop or length")
        try:
            said, repeat = self._token_ids(fields), int(fields.get("repeat", 1))
            if len(said) * repeat > _MOST_TOKENS:
                raise _refused(f"says more than {_MOST_TOKENS} tokens")
            token_ids = tuple(said) * repeat
            script = Script(
                token_ids,
                finish,
                ttft_s=_seconds(fields, "ttft_ms"),
                itl_s=_seconds(fields, "itl_ms"),
                fail_after=_count(fields, "fail_after"),
                hang_after=_count(fields, "hang_after"),
            )
        except (TypeError, ValueError, OverflowError, AttributeError) as error:
            raise _refused(f"has a value of the wrong type: {error}") from None
        if not token_ids and finish == "length":
            raise _refused("says nothing; an answer that ends by length needs a token")
        return script

    def _token_ids(self, fields: dict[str, Any]) -> list[int]:
        ids = [self._piece(piece) for piece in fields.get("pieces", ())]
        for token_id in fields.get("tokens", ()):
            if not (isinstance(token_id, int) and 0 <= token_id < self._vocabulary.vocab_size):
                raise _refused(f"has token {token_id!r}; ids go from 0 to {self._vocabulary.vocab_size - 1}")
            ids.append(token_id)
        for byte in bytes.fromhex(fields.get("bytes", "")):
            if (single := self._id_of.get(bytes([byte]))) is None:
                raise _refused(f"has byte 0x{byte:02x}, for which this tokenizer has no token")
            ids.append(single)
        return ids + (self._encode(fields["text"]) if "text" in fields else [])

    def _piece(self, piece: str) -> int:
        token_id = self._id_of.get(piece.encode())
        if token_id is None:
            raise _refused(f"has piece {piece!r}, which is not one token of this tokenizer")
        return token_id

    def _encode(self, text: str) -> list[int]:
        return self._vocabulary.encode(text, add_special_tokens=False)


def _seconds(fields: dict[str, Any], key: str) -> float:
    milliseconds = float(fields.get(key, 0))
    if not 0 <= milliseconds < math.inf:
        raise ValueError(f"{key} is no delay")
    return milliseconds / 1000


def _count(fields: dict[str, Any], key: str) -> int | None:
    return int(fields[key]) if key in fields else None


def _refused(what: str) -> Failure:
    return Failure(grpc.StatusCode.INVALID_ARGUMENT, f"the SCRIPT in the prompt {what}", param="prompt")
