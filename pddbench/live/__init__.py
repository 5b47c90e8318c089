"""The live view of a run: a process of its own that reads the spool as it grows, so that watching costs no token."""
