"""Replay: sends the planned requests to a live endpoint and keeps every byte and stamp that comes back."""
