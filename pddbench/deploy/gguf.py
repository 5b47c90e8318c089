"""A tiny llama model with random weights as a GGUF file, so that a real engine can be driven without any download.

The model says nothing sensible; it is there for its server: real tokens, a real prefix cache, real streams. Written by
our own code in well under a second. Its vocabulary makes every word of `workload.words` one token (with the space
before it), so text prompts have exactly the planned lengths. Format: GGUF version 3, little-endian
(https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from pddbench.workload.words import WORDS

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Tensor = npt.NDArray[np.float32]

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }} {{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant{% endif %}"
)  # a space before the content: its first word is one token too

_ALIGNMENT_BYTES = 32
_VERSION = 3
_UINT32, _INT32, _FLOAT32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9
_F32_TENSOR = 0
_NORMAL, _CONTROL = 1, 3  # token types
_END = SPECIALS.index("<|im_end|>")
_END_SCALE = 4  # its logit spreads four times as wide as the others': it wins in about a quarter of cases


class TinyLlama(msgspec.Struct, frozen=True, kw_only=True):
    """Shape of the model. `printable_only`: greedy decoding can only pick tokens of printable ASCII.

    Otherwise bytes that are no character by themselves come out as well; llama.cpp's server holds those back, so that
    a reply has fewer chunks than tokens. `ends`: the end of the text wins about every fourth step, as in a model that
    would rather say little; else it never does.
    """

    layers: int = 2
    width: int = 128
    heads: int = 4
    kv_heads: int = 2
    feed_forward: int = 256
    context_tokens: int = 131072
    seed: int = 0
    printable_only: bool = True
    ends: bool = False


class Vocabulary(msgspec.Struct, frozen=True):
    """Byte-level BPE: tokens by id, and its merges in order of rank."""

    tokens: list[str]
    merges: list[str]

    @property
    def free_ids(self) -> tuple[int, int]:
        """[low, high) ids without special tokens and single bytes: what `--token-id-range` takes."""
        return len(SPECIALS) + 256, len(self.tokens)


def vocabulary(words: Sequence[str] = WORDS) -> Vocabulary:
    """Specials, all bytes, and every word behind a space, merged letter by letter from the left.

    All merges begin at the space, so no two words disturb each other and each ends as one token.
    """
    space = _byte_characters()[ord(" ")]
    pieces: dict[str, str] = {}
    for word in words:
        for n in range(1, len(word) + 1):
            pieces.setdefault(space + word[:n], f"{space}{word[: n - 1]} {word[n - 1]}")
    return Vocabulary([*SPECIALS, *_byte_characters(), *pieces], list(pieces.values()))


def write_tiny_llama(path: Path, model: TinyLlama | None = None) -> Vocabulary:
    """Write the model to `path` and return its vocabulary."""
    model = model or TinyLlama()
    words = vocabulary()
    _write(path, _metadata(model, words), _tensors(model, words))
    return words


def _byte_characters() -> list[str]:
    """The printable character that stands for each byte in byte-level BPE (GPT-2's table)."""
    plain = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    moved = iter(range(0x100, 0x200))
    return [chr(byte if byte in plain else next(moved)) for byte in range(256)]


def _metadata(model: TinyLlama, words: Vocabulary) -> dict[str, Any]:
    types = [_CONTROL if token in SPECIALS else _NORMAL for token in words.tokens]
    return {
        "general.architecture": "llama",
        "general.name": "pddbench-tiny-random",
        "general.alignment": _ALIGNMENT_BYTES,
        "general.file_type": 0,
        "llama.context_length": model.context_tokens,
        "llama.embedding_length": model.width,
        "llama.block_count": model.layers,
        "llama.feed_forward_length": model.feed_forward,
        "llama.attention.head_count": model.heads,
        "llama.attention.head_count_kv": model.kv_heads,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": model.width // model.heads,
        "llama.rope.freq_base": 500000.0,
        "llama.vocab_size": len(words.tokens),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": words.tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": words.merges,
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": _END,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }


def _tensors(model: TinyLlama, words: Vocabulary) -> dict[str, Tensor]:
    """Weights by name, shapes as GGUF wants them (rows first)."""
    import numpy as np

    random = np.random.default_rng(model.seed)

    def matrix(rows: int, columns: int) -> Tensor:
        return random.standard_normal((rows, columns), np.float32) * np.float32(columns**-0.5)

    width, kv_width = model.width, model.width // model.heads * model.kv_heads
    ones = np.ones(width, np.float32)
    output = matrix(len(words.tokens), width) * 8
    output[_END] *= _END_SCALE
    output[_never(model, words)] = 0  # a logit of 0 never wins against the greatest of hundreds of random ones
    tensors = {"token_embd.weight": matrix(len(words.tokens), width) * np.float32(np.sqrt(width))}
    tensors |= {"output.weight": output, "output_norm.weight": ones}
    for layer in range(model.layers):
        tensors |= {
            f"blk.{layer}.attn_norm.weight": ones,
            f"blk.{layer}.ffn_norm.weight": ones,
            f"blk.{layer}.attn_q.weight": matrix(width, width) * 2,
            f"blk.{layer}.attn_k.weight": matrix(kv_width, width) * 2,
            f"blk.{layer}.attn_v.weight": matrix(kv_width, width) * 2,
            f"blk.{layer}.attn_output.weight": matrix(width, width) * 2,
            f"blk.{layer}.ffn_gate.weight": matrix(model.feed_forward, width),
            f"blk.{layer}.ffn_up.weight": matrix(model.feed_forward, width),
            f"blk.{layer}.ffn_down.weight": matrix(width, model.feed_forward),
        }
    return tensors


def _never(model: TinyLlama, words: Vocabulary) -> list[int]:
    """Ids that greedy decoding must not pick: the specials, and where wished all that is not printable ASCII."""
    never = [token for token in range(len(SPECIALS)) if token != _END or not model.ends]
    if model.printable_only:
        first_byte = len(SPECIALS)
        never += [first_byte + byte for byte in range(256) if not 0x20 <= byte < 0x7F]
    return never


def _write(path: Path, metadata: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    infos, offset = [], 0
    for name, tensor in tensors.items():
        shape = tensor.shape[::-1]  # GGUF's first dimension is the contiguous one
        dims = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        infos.append(_string(name) + dims + struct.pack("<IQ", _F32_TENSOR, offset))
        offset += _padded(tensor.nbytes)
    head = b"GGUF" + struct.pack("<IQQ", _VERSION, len(tensors), len(metadata))
    head += b"".join(_string(key) + _typed(value) for key, value in metadata.items()) + b"".join(infos)
    with path.open("wb") as file:
        file.write(head.ljust(_padded(len(head)), b"\0"))
        for tensor in tensors.values():
            file.write(tensor.tobytes().ljust(_padded(tensor.nbytes), b"\0"))


def _padded(n_bytes: int) -> int:
    return -(-n_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _typed(value: Any) -> bytes:
    """A metadata value with its type before it."""
    if isinstance(value, bool):
        return struct.pack("<I?", _BOOL, value)
    if isinstance(value, int):
        return struct.pack("<II", _UINT32, value)
    if isinstance(value, float):
        return struct.pack("<If", _FLOAT32, value)
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _string(value)
    return struct.pack("<I", _ARRAY) + _array(value)


def _array(values: Iterable[Any]) -> bytes:
    """A list of strings or of signed integers."""
    items = list(values)
    if isinstance(items[0], str):
        return struct.pack("<IQ", _STRING, len(items)) + b"".join(map(_string, items))
    return struct.pack(f"<IQ{len(items)}i", _INT32, len(items), *items)
