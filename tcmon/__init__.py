"""A low-overhead monitor for PyTorch training that needs no change to the program."""

__version__ = "0.1.0"
