"""A GGUF file's weights as a Hugging Face configuration and a safetensors file, a few rows at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, GGUFReader, ReaderTensor
from gguf.quants import dequantize, quantize

from services.engine.model.errors import UnsupportedModelError

_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_CHUNK_VALUES = 1 << 21
"""Values dequantised at once: 8 MB of float32, so memory stays far below the size of the model."""


class GgufModel:
    """Reads one file; raises UnsupportedModelError for an architecture or feature that isn't computed here."""

    def __init__(self, path: Path) -> None:
        self._reader = GGUFReader(path)
        self._path = path
        self._kind: str = self._field("general.architecture")
        if self._kind not in _ARCHITECTURES:
            raise UnsupportedModelError(f"{path}: architecture {self._kind!r} is none of {', '.join(_ARCHITECTURES)}")
        scaled = self._field(f"{self._kind}.rope.scaling.type", "none")
        if scaled != "none" or any(tensor.name == "rope_freqs.weight" for tensor in self._reader.tensors):
            raise UnsupportedModelError(
                f"{path}: rope scaling isn't read from GGUF; use the model's Hugging Face folder"
            )

    def config(self) -> dict[str, Any]:
        """The content of `config.json`."""
        kind = self._kind
        heads = self._field(f"{kind}.attention.head_count")
        hidden = self._field(f"{kind}.embedding_length")
        embedding = next(tensor for tensor in self._reader.tensors if tensor.name == "token_embd.weight")
        ends = [self._field(f"tokenizer.ggml.{name}_token_id", None) for name in ("eos", "eot", "eom")]
        return {
            "architectures": [_ARCHITECTURES[kind]],
            "model_type": kind,
            "vocab_size": int(embedding.shape[1]),
            "hidden_size": hidden,
            "intermediate_size": self._field(f"{kind}.feed_forward_length"),
            "num_hidden_layers": self._field(f"{kind}.block_count"),
            "num_attention_heads": heads,
            "num_key_value_heads": self._field(f"{kind}.attention.head_count_kv", heads),
            "head_dim": self._field(f"{kind}.attention.key_length", hidden // heads),
            "rms_norm_eps": self._field(f"{kind}.attention.layer_norm_rms_epsilon"),
            "rope_theta": self._field(f"{kind}.rope.freq_base", 10_000.0),
            "max_position_embeddings": self._field(f"{kind}.context_length"),
            "tie_word_embeddings": all(tensor.name != "output.weight" for tensor in self._reader.tensors),
            "attention_bias": kind == "llama" and any(t.name == "blk.0.attn_q.bias" for t in self._reader.tensors),
            "hidden_act": "silu",
            "bos_token_id": self._field("tokenizer.ggml.bos_token_id", None),
            "eos_token_id": sorted({end for end in ends if end is not None}),
        }

    def write_safetensors(self, file: BinaryIO, dtype: str, metadata: dict[str, str]) -> None:
        """Dequantise every tensor into `file` as `dtype` ("bfloat16" or "float32", the latter exact)."""
        width, code = {"bfloat16": (2, "BF16"), "float32": (4, "F32")}[dtype]
        header: dict[str, Any] = {"__metadata__": metadata}
        offset = 0
        for tensor in self._reader.tensors:
            end = offset + int(tensor.n_elements) * width
            shape = [int(size) for size in reversed(tensor.shape)]  # GGUF lists the fastest axis first
            header[self._name(tensor)] = {"dtype": code, "shape": shape, "data_offsets": [offset, end]}
            offset = end
        encoded = json.dumps(header).encode()
        encoded += b" " * (-len(encoded) % 8)
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for tensor in self._reader.tensors:
            for values in self._values(tensor):
                file.write(
                    values.tobytes() if dtype == "float32" else quantize(values, GGMLQuantizationType.BF16).tobytes()
                )

    def _values(self, tensor: ReaderTensor) -> Iterator[npt.NDArray[np.float32]]:
        rows = self._unpermuted(tensor)
        step = max(1, _CHUNK_VALUES * len(rows) // int(tensor.n_elements))
        for first in range(0, len(rows), step):
            yield dequantize(rows[first : first + step], tensor.tensor_type).astype(np.float32, copy=False)

    def _unpermuted(self, tensor: ReaderTensor) -> npt.NDArray[Any]:
        """The tensor's rows, still quantised, in Hugging Face's order.

        llama.cpp rotates neighbouring dimensions and its converter reorders the rows of Llama's queries and keys for
        that; our rotation, like Hugging Face's, pairs the halves of a head.
        """
        rows: npt.NDArray[Any] = tensor.data
        part = tensor.name.split(".")[-2]
        if self._kind != "llama" or part not in ("attn_q", "attn_k"):
            return rows
        heads = self._field("llama.attention.head_count")
        if part == "attn_k":
            heads = self._field("llama.attention.head_count_kv", heads)
        pairs = rows.reshape(heads, len(rows) // heads // 2, 2, *rows.shape[1:])
        return pairs.swapaxes(1, 2).reshape(rows.shape)

    def _name(self, tensor: ReaderTensor) -> str:
        *path, suffix = tensor.name.split(".")
        if len(path) == 1 and path[0] in _NAMES:
            return f"{_NAMES[path[0]]}.{suffix}"
        if len(path) == 3 and path[0] == "blk" and path[2] in _LAYER_NAMES:
            return f"model.layers.{path[1]}.{_LAYER_NAMES[path[2]]}.{suffix}"
        raise UnsupportedModelError(f"{self._path}: tensor {tensor.name} has no place in a {self._kind} model")

    def _field(self, name: str, *default: Any) -> Any:
        field = self._reader.get_field(name)
        if field is not None:
            return field.contents()
        if default:
            return default[0]
        raise UnsupportedModelError(f"{self._path} lacks {name}; fetch the file again")
