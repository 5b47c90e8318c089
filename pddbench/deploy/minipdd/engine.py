"""llama.cpp's own HTTP server (the `xllamacpp` wheel) in a process of its own, until stdin closes.

`python -m pddbench.deploy.minipdd.engine MODEL.gguf [--slots N] [--context-tokens N] [--threads N]
[--slot-folder DIR] [--flash-attention] [--kv-type f16|f32]`: prints its URL as the first line.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

MODEL_NAME = "tiny"


def parameters(options: argparse.Namespace) -> Any:
    """Settings of a server on loopback: metrics on, no warm-up, a KV cache for each slot.

    With a slot folder the server's own store of idle prompts is off: whoever saves and restores slots decides alone.
    """
    import xllamacpp

    p = xllamacpp.CommonParams()
    p.model.path = options.model
    p.model_alias = {MODEL_NAME}
    p.hostnames = ["127.0.0.1"]
    p.port = options.port
    p.n_ctx, p.n_parallel, p.kv_unified = options.context_tokens * options.slots, options.slots, False
    p.cpuparams.n_threads = p.cpuparams_batch.n_threads = options.threads
    kinds = xllamacpp.llama_flash_attn_type
    enabled, disabled = kinds.LLAMA_FLASH_ATTN_TYPE_ENABLED, kinds.LLAMA_FLASH_ATTN_TYPE_DISABLED
    p.flash_attn_type = enabled if options.flash_attention else disabled
    p.cache_type_k = p.cache_type_v = getattr(xllamacpp.ggml_type, f"GGML_TYPE_{options.kv_type.upper()}")
    p.endpoint_metrics = p.endpoint_slots = True
    p.warmup = p.ui = False
    p.verbosity = 1
    if options.slot_folder:
        p.cache_ram_mib = 0
        p.cache_idle_slots = False
        p.slot_save_path = options.slot_folder.rstrip("/") + "/"
    return p


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="pddbench.deploy.minipdd.engine")
    parser.add_argument("model")
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--context-tokens", type=int, default=8192, help="of each slot")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--slot-folder", help="where POST /slots/N?action=save puts files")
    parser.add_argument("--flash-attention", action="store_true")
    parser.add_argument("--kv-type", choices=["f16", "f32"], default="f16")
    return parser.parse_args()


def main() -> None:
    """Serve until the parent closes our stdin."""
    options = _options()
    import xllamacpp

    server = xllamacpp.Server(parameters(options))
    sys.stdout.write(f"{server.listening_address}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
