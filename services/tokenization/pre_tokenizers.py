"""How text is cut before merges apply, by the name that a GGUF file gives its vocabulary's cut."""

from __future__ import annotations

from tokenizers import Regex, pre_tokenizers

from services.tokenization.errors import ModelFilesError

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# None: GPT-2's own cut, which ByteLevel has built in. `smollm` is cut like GPT-2, as Hugging Face transformers does it
# for this file: digits stay single all the same because the vocabulary has no merges of them.
_SPLITS: dict[str, str | None] = {
    "default": None,
    "gpt-2": None,
    "smollm": None,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama-bpe": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
}


def pre_tokenizer(name: str) -> pre_tokenizers.PreTokenizer:
    """The cut called `name` in `tokenizer.ggml.pre`. Raises ModelFilesError for one that we don't know."""
    if name not in _SPLITS:
        raise ModelFilesError(
            f"GGUF pre-tokenizer {name!r} is not supported (known: {', '.join(sorted(_SPLITS))}); "
            "use the model's Hugging Face folder instead"
        )
    split = _SPLITS[name]
    if split is None:
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(split), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
