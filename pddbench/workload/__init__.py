"""Workloads: a trace plus how it is sent, and the exact requests that follow from it. Pure and seeded."""
