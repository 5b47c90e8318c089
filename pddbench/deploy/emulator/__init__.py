"""Emulated deployments: real HTTP, SSE and TCP; only the chips are emulated."""
