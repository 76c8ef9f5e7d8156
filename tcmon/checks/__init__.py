"""Tells what is wrong with a training run from its recorded steps: certainly, probably, or worth a look."""
