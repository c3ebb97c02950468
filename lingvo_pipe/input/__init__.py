"""Inputs, which read data sets and make batches for training and evaluation."""

from lingvo_pipe.core.lazy_names import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
