"""A low-overhead monitor for PyTorch training that needs no change to the program."""

from tcmon.control import STAGES, annotate_stage, start_eval_step, start_step, step

__version__ = "0.1.0"
__all__ = ["STAGES", "annotate_stage", "start_eval_step", "start_step", "step"]
