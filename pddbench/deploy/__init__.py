"""Deployments under test: external endpoints, and the embedded emulated ones."""
