"""Small programs that run as processes of their own inside a namespace: only the standard library, quick to start.

They are started by `wan.namespaces.program` without `site`, so they may import each other but nothing else of pddbench.
"""
