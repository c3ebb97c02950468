"""Settings of Python's garbage collector while graphs are built."""

import contextlib
import gc
from collections.abc import Iterator

_THRESHOLDS = 50_000, 20, 50


@contextlib.contextmanager
def collected_seldom() -> Iterator[None]:
    """Makes Python collect garbage seldom while the context is open.

    TensorFlow's graphs are millions of objects. With Python's own thresholds, a tenth
    of the time to build a graph goes into searching these objects for garbage.
    """
    before = gc.get_threshold()
    gc.set_threshold(*_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
