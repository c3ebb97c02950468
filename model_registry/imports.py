"""Imports of modules whose classes register themselves."""

import importlib
import pkgutil
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import TypeAlias

from lingvo_pipe.core.errors import UserImportError, UserTypeError

OnError: TypeAlias = Callable[[str, Exception], None]


def import_module_of(name: str) -> None:
    """Imports the module of model `family.file.Class`, if it exists."""
    module_name = name.rpartition(".")[0]
    if module_name and not _import_if_exists(f"params.{module_name}"):
        _import_if_exists(module_name)


def ImportModels(package_names: Iterable[str], on_error: OnError | None = None) -> None:
    """Imports packages, by full names, and all modules below them but `__main__`.

    Folders need an `__init__.py`. Raises ImportError if a package does not exist.
    `on_error` gets the name and the error of a module that fails; by default it is
    raised.
    """
    if isinstance(package_names, str):
        raise UserTypeError(
            path="ImportModels", expected="a list of names", got=package_names
        )
    for name in package_names:
        module = _import_if_exists(name)
        if module is None:
            raise UserImportError(
                f"A package of models must be importable; there is no {name!r}. Put "
                "the folder that holds it on PYTHONPATH, or install it."
            )
        below = getattr(module, "__path__", ())
        # The walk imports packages too; what happens there has been reported.
        for info in pkgutil.walk_packages(below, f"{name}.", onerror=lambda name: None):
            if info.name.endswith(".__main__"):
                continue
            try:
                importlib.import_module(info.name)
            except Exception as error:
                if on_error is None:
                    raise
                on_error(info.name, error)


def ImportAll(on_error: OnError | None = None) -> None:
    """Imports every module of `params`, so that ListModels is complete."""
    ImportModels(["params"], on_error)


def _import_if_exists(name: str) -> ModuleType | None:
    """Imports a module; returns None if it or a package that contains it is missing."""
    if not all(name.split(".")):  # Python would treat it as a relative name.
        return None
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # An import inside the module may fail too: that error is raised unchanged.
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            return None
        raise
