"""Checks for tests of your own models."""

from lingvo_pipe.core.lazy_names import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
