"""A GGUF file's tokenizer as the files that Hugging Face uses, made once and kept in the cache folder."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from services.tokenization.cache import CACHE_DIR_VARIABLE, cache_folder, write_atomically
from services.tokenization.errors import ModelFilesError

_FORMAT = b"1"  # change it when what is written into the cache folder changes
_SAMPLES = 128
_SAMPLE_BYTES = 8192
_CONTROL, _USER_DEFINED = 3, 4  # values of tokenizer.ggml.token_type


def converted_folder(gguf_path: Path) -> Path:
    """The cache folder of what is made from this file: tokenizer files here, weights by the engine. It exists.

    Its name comes from the content (size and samples spread over the file), so that copies share it and a changed
    file gets another. Reading every byte would cost each start of each service seconds with a large model.
    """
    try:
        digest = _sampled_digest(gguf_path)
    except OSError as error:
        raise ModelFilesError(f"cannot read model file {gguf_path}: {error.strerror}") from error
    name = f"{re.sub(r'[^A-Za-z0-9._-]', '_', gguf_path.stem)}-{digest}"
    try:
        folder = cache_folder() / "models" / name
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelFilesError(f"no folder to cache models in: {error}; set {CACHE_DIR_VARIABLE}") from error
    return folder


def ensure_tokenizer_files(gguf_path: Path, folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and generation_config.json into `folder` unless they are there.

    Any number of processes may do this at once. Raises ModelFilesError for a file or vocabulary that we can't read.
    """
    if (folder / "tokenizer.json").exists():
        return
    metadata = _metadata(gguf_path)
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    config: dict[str, Any] = {"model_max_length": metadata[f"{metadata['general.architecture']}.context_length"]}
    for name in ("bos", "eos"):
        token_id = metadata.get(f"tokenizer.ggml.{name}_token_id")
        if token_id is not None:
            config[f"{name}_token"] = tokens[token_id]
    if "tokenizer.chat_template" in metadata:
        config["chat_template"] = metadata["tokenizer.chat_template"]
    ends = [metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    generation = {"eos_token_id": sorted({end for end in ends if end is not None})}

    write_atomically(folder / "tokenizer_config.json", json.dumps(config, ensure_ascii=False).encode())
    write_atomically(folder / "generation_config.json", json.dumps(generation).encode())
    # Last: its presence says that the other two are there.
    write_atomically(folder / "tokenizer.json", _tokenizer_json(metadata).encode())


def _tokenizer_json(metadata: dict[str, Any]) -> str:
    from tokenizers import AddedToken, Tokenizer, decoders, models, processors

    from services.tokenization.pre_tokenizers import pre_tokenizer

    kind = metadata.get("tokenizer.ggml.model")
    if kind != "gpt2":
        raise ModelFilesError(
            f"GGUF tokenizer {kind!r} is not supported (only byte-level BPE, 'gpt2'); "
            "use the model's Hugging Face folder instead"
        )
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizer(metadata.get("tokenizer.ggml.pre", "default"))
    tokenizer.decoder = decoders.ByteLevel()
    types = metadata.get("tokenizer.ggml.token_type", ())
    pairs = list(zip(tokens, types, strict=False))
    tokenizer.add_special_tokens(
        [AddedToken(token, normalized=False, special=True) for token, t in pairs if t == _CONTROL]
    )
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token, t in pairs if t == _USER_DEFINED])
    bos_id = metadata.get("tokenizer.ggml.bos_token_id")
    if metadata.get("tokenizer.ggml.add_bos_token") and bos_id is not None:
        bos = tokens[bos_id]
        tokenizer.post_processor = processors.TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, bos_id)])
    return tokenizer.to_str()


def _metadata(gguf_path: Path) -> dict[str, Any]:
    # Imported here: only the first start with a model pays for numpy.
    from gguf import GGUFReader

    try:
        reader = GGUFReader(gguf_path)
        return {name: field.contents() for name, field in reader.fields.items()}
    except (OSError, ValueError, IndexError) as error:
        raise ModelFilesError(f"{gguf_path} is not a readable GGUF file ({error}); fetch it again") from error


def _sampled_digest(path: Path) -> str:
    size = path.stat().st_size
    digest = hashlib.blake2b(_FORMAT + size.to_bytes(8, "little"), digest_size=8)
    with path.open("rb") as file:
        for sample in range(_SAMPLES):
            file.seek(sample * max(0, size - _SAMPLE_BYTES) // (_SAMPLES - 1))
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()
