"""A layer framework for TensorFlow around pipeline parallelism.

`__init__.pyi` lists the public names. Each is imported when it is first used, so that
programs which need no TensorFlow start fast.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
