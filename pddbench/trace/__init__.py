"""Traces: the canonical model, its readers and writers, and what a prefix cache would make of it. Pure."""
