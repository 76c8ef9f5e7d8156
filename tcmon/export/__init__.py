"""Runs in the formats of other tools. Readers of a run directory: nothing here is imported while training runs."""
