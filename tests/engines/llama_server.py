"""llama.cpp's own HTTP server (the `xllamacpp` wheel) in a process of its own, until stdin closes.

`python llama_server.py MODEL.gguf [SLOTS] [CONTEXT_TOKENS_A_SLOT]`: prints its URL as the first line.
"""

from __future__ import annotations

import sys

import xllamacpp


def parameters(model, slots, context_tokens):
    """Settings of a server on a free loopback port: one thread, metrics on, no warm-up, a KV cache for each slot."""
    p = xllamacpp.CommonParams()
    p.model.path = model
    p.model_alias = {"tiny"}
    p.hostnames = ["127.0.0.1"]
    p.port = 0
    p.n_ctx, p.n_parallel, p.kv_unified = context_tokens * slots, slots, False
    p.cpuparams.n_threads = p.cpuparams_batch.n_threads = 1
    p.endpoint_metrics = True
    p.warmup = False
    p.ui = False
    p.verbosity = 1
    return p


def main():
    """Serve until the parent closes our stdin."""
    arguments = dict(enumerate(sys.argv))
    slots, context_tokens = int(arguments.get(2, 4)), int(arguments.get(3, 8192))
    server = xllamacpp.Server(parameters(arguments[1], slots, context_tokens))
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
