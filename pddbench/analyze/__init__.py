"""Analysis: pure functions from rows to answers. No clock, no network, never imports `replay`."""
