"""A real PDD in miniature: stock llama.cpp servers as P, RLD and MD, their KV as slot files over the WAN link."""
