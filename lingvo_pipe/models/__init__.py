"""Models: lists of cells for a PipeliningLayer, and the tasks that train them."""

from lingvo_pipe.core.lazy_names import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
