"""Layers, one file per family. The folder `core` holds what all layers share."""

from lingvo_pipe.core.lazy_names import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
