"""Watches the Python processes that a command or a program starts, each with its own files in one run directory."""
