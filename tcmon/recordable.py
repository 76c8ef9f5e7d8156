"""What can be recorded of a step, by name: all that a command line needs to know of it."""

RECORDABLE = ("calls", "cfunctions", "lines", "args", "state", "loss", "ops")

DEFAULT = ("calls", "lines", "state", "loss")
"""What is recorded unless something else is asked for."""
