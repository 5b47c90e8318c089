"""A tiny llama with random weights in the folder form of Hugging Face, made without torch, for servers without GGUF.

`python -m tests.engines.nightly.hf_model FOLDER`. The vocabulary is that of `pddbench.deploy.gguf`: every word of our
text prompts is one token. Needs numpy and `tokenizers`.
"""

from __future__ import annotations

import itertools
import json
import struct
import sys
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from pddbench.deploy.gguf import CHAT_TEMPLATE, SPECIALS, vocabulary
from pddbench.workload.words import WORDS

# Dynamo's mocker says ids from 1000 to 2000, whatever the vocabulary: without these they would have no text
MORE = ["".join(letters) for letters in itertools.product("bcdfghjklmnp", repeat=3)]
WIDTH, LAYERS, HEADS, KV_HEADS, FEED_FORWARD, CONTEXT_TOKENS = 128, 2, 4, 2, 256, 8192


def config(words):
    """What `config.json` says."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": WIDTH,
        "intermediate_size": FEED_FORWARD,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": WIDTH // HEADS,
        "hidden_act": "silu",
        "max_position_embeddings": CONTEXT_TOKENS,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "vocab_size": len(words),
        "bos_token_id": 0,
        "eos_token_id": SPECIALS.index("<|im_end|>"),
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
    }


def tensors(n_words, seed=0):
    """Weights by name; the end of text is as likely as any word."""
    random = np.random.default_rng(seed)

    def matrix(rows, columns, scale=1.0):
        return (random.standard_normal((rows, columns)) * scale * columns**-0.5).astype(np.float32)

    ones, kv = np.ones(WIDTH, np.float32), WIDTH // HEADS * KV_HEADS
    out = {"model.embed_tokens.weight": matrix(n_words, WIDTH, WIDTH**0.5), "model.norm.weight": ones}
    out["lm_head.weight"] = matrix(n_words, WIDTH, 8)
    out["lm_head.weight"][3:259] = 0  # single bytes never win
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        out |= {
            f"{at}input_layernorm.weight": ones,
            f"{at}post_attention_layernorm.weight": ones,
            f"{at}self_attn.q_proj.weight": matrix(WIDTH, WIDTH, 2),
            f"{at}self_attn.k_proj.weight": matrix(kv, WIDTH, 2),
            f"{at}self_attn.v_proj.weight": matrix(kv, WIDTH, 2),
            f"{at}self_attn.o_proj.weight": matrix(WIDTH, WIDTH, 2),
            f"{at}mlp.gate_proj.weight": matrix(FEED_FORWARD, WIDTH),
            f"{at}mlp.up_proj.weight": matrix(FEED_FORWARD, WIDTH),
            f"{at}mlp.down_proj.weight": matrix(WIDTH, FEED_FORWARD),
        }
    return out


def write_safetensors(path, weights):
    """The safetensors format: length of a JSON header, the header, the data."""
    header, at = {}, 0
    for name, value in weights.items():
        header[name] = {"dtype": "F32", "shape": list(value.shape), "data_offsets": [at, at + value.nbytes]}
        at += value.nbytes
    raw = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(raw)) + raw)
        for value in weights.values():
            file.write(value.tobytes())


def write_model(folder):
    """Everything a server looks for."""
    folder.mkdir(parents=True, exist_ok=True)
    words = vocabulary([*WORDS, *MORE])
    ids = {token: number for number, token in enumerate(words.tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=[tuple(merge.split(" ")) for merge in words.merges]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIALS])
    tokenizer.save(str(folder / "tokenizer.json"))
    for name, value in {
        "config.json": config(words.tokens),
        "generation_config.json": {"bos_token_id": 0, "eos_token_id": SPECIALS.index("<|im_end|>")},
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": SPECIALS[0],
            "eos_token": SPECIALS[2],
            "chat_template": CHAT_TEMPLATE,
            "model_max_length": CONTEXT_TOKENS,
        },
    }.items():
        (folder / name).write_text(json.dumps(value, indent=1))
    write_safetensors(folder / "model.safetensors", tensors(len(words.tokens)))


if __name__ == "__main__":
    write_model(Path(sys.argv[1]))
