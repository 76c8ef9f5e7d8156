"""Recorders that run inside a recorded step."""
