"""The native reader: a thread in C that reads and stamps what arrives, while Python sleeps (`reader.c`).

A plain shared library, called through `ctypes`: it needs a C compiler when pddbench is installed, but no headers of
Python, fits every version of it, and can be fuzzed as a C program. `library` loads it, `reader` speaks with it. It is
optional: without a compiler the Python reader (`replay.raw_connection`) does the same, and every report says so.
"""
