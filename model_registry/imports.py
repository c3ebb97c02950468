"""Imports of modules whose classes register themselves."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable
from types import ModuleType

from lingvo_pipe.core.errors import UserImportError, UserTypeError


def import_module_of(name: str) -> None:
    """Imports the module of model `family.file.Class`, if it exists."""
    module_name = name.rpartition(".")[0]
    if module_name and not _import_if_exists(f"params.{module_name}"):
        _import_if_exists(module_name)


def ImportModels(package_names: Iterable[str]) -> None:
    """Imports packages, by full names, and all modules below them but `__main__`.

    Folders need an `__init__.py`.

    Raises:
        ImportError: if a package does not exist. Errors inside a package are raised
            unchanged.
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
        for info in pkgutil.walk_packages(getattr(module, "__path__", ()), f"{name}."):
            if not info.name.endswith(".__main__"):
                importlib.import_module(info.name)


def ImportAll() -> None:
    """Imports every module of `params`, so that ListModels is complete."""
    ImportModels(["params"])


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
