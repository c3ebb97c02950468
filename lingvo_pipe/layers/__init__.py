"""Layers, one file per family. `core` holds their base."""

from lingvo_pipe.core.lazy_names import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
