"""Calibration: how well this host's clock and this client do against a server whose truth is known."""
