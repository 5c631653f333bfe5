"""The bytes that each token stands for, so that text can be built from tokens of any cut.

Bytes rather than text, because a token may hold a part of a character; only bytes can be put together token by token.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from services.tokenization.errors import ModelFilesError

_BYTE_FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_METASPACE = "▁"


def byte_level_alphabet() -> dict[str, int]:
    """Character -> byte of byte-level BPE (GPT-2): visible bytes spell themselves, the others sit from U+0100 on."""
    visible = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    alphabet = {chr(byte): byte for byte in visible}
    others = (byte for byte in range(256) if chr(byte) not in alphabet)
    return alphabet | {chr(256 + position): byte for position, byte in enumerate(others)}


def token_byte_table(
    vocabulary: Mapping[str, int], added: Mapping[int, str], decoder: Mapping[str, Any]
) -> list[bytes]:
    """Bytes of every id from 0 to the highest one; b"" for an id that no token has.

    `decoder` is the decoder part of tokenizer.json: it says how tokens are spelled. Raises ModelFilesError for a
    spelling that is neither byte-level BPE nor SentencePiece's.
    """
    table = [b""] * (max(vocabulary.values(), default=-1) + 1)
    if decoder_has(decoder, "ByteLevel"):
        alphabet = byte_level_alphabet()
        for token, token_id in vocabulary.items():
            table[token_id] = _from_byte_level(token, alphabet)
    elif decoder_has(decoder, "Metaspace") or _replaces_metaspace(decoder):
        for token, token_id in vocabulary.items():
            table[token_id] = token.encode() if token_id in added else _from_sentencepiece(token)
    else:
        raise ModelFilesError(
            f"tokenizer decoder {decoder.get('type')!r} is not supported: only byte-level BPE and SentencePiece-style "
            "vocabularies can be streamed; choose another model"
        )
    return table


def strips_leading_space(decoder: Mapping[str, Any]) -> bool:
    """Whether a whole text's decode drops the space that encoding put in front of it."""
    return any(
        (part.get("type") == "Strip" and part.get("content") == " " and part.get("start", 0) > 0)
        or (part.get("type") == "Metaspace" and part.get("prepend_scheme", "always") != "never")
        for part in _parts(decoder)
    )


def decoder_has(decoder: Mapping[str, Any], kind: str) -> bool:
    return any(part.get("type") == kind for part in _parts(decoder))


def _replaces_metaspace(decoder: Mapping[str, Any]) -> bool:
    return any(
        part.get("type") == "Replace" and part.get("pattern", {}).get("String") == _METASPACE
        for part in _parts(decoder)
    )


def _parts(decoder: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return list(decoder["decoders"]) if decoder.get("type") == "Sequence" else [decoder]


def _from_byte_level(token: str, alphabet: Mapping[str, int]) -> bytes:
    try:
        return bytes(alphabet[character] for character in token)
    except KeyError:  # an added token is spelled as it is
        return token.encode()


def _from_sentencepiece(token: str) -> bytes:
    if fallback := _BYTE_FALLBACK.fullmatch(token):
        return bytes((int(fallback[1], 16),))
    return token.replace(_METASPACE, " ").encode()
