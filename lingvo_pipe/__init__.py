"""A layer framework for TensorFlow around pipeline parallelism.

`__init__.pyi` lists the public names. Each name is imported when it is first used.
"""

from lingvo_pipe.core.lazy_names import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
