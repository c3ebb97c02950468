"""Public names of packages, imported when they are first used."""

import sys
from collections.abc import Callable
from typing import Any

import lazy_loader

from lingvo_pipe.core.tensorflow_startup import quiet_startup


def attach(
    package: str, file: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Returns a package's `__getattr__`, `__dir__` and `__all__`, from a stub file."""
    get, list_names, names = lazy_loader.attach_stub(package, file)

    def get_quietly(name: str) -> Any:
        if name not in names or "tensorflow" in sys.modules:
            return get(name)
        with quiet_startup():
            return get(name)

    return get_quietly, list_names, names
