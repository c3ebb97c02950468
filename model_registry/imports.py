"""Imports the modules whose classes register themselves."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable
from types import ModuleType


def import_module_of(name: str) -> None:
    """Imports the module of model `family.file.Class`, if there is one."""
    module_name = name.rpartition(".")[0]
    if module_name and not _import_if_there(f"params.{module_name}"):
        _import_if_there(module_name)


def ImportModels(package_names: Iterable[str]) -> None:
    """Imports packages and all modules below them.

    Args:
      package_names: Their full names; folders need an `__init__.py`.

    Raises:
      ImportError: A package cannot be found. An error inside of one is raised as is.
    """
    if isinstance(package_names, str):
        raise TypeError(
            f"ImportModels must be given a list of names; got {package_names!r}."
        )
    for name in package_names:
        module = _import_if_there(name)
        if module is None:
            raise ImportError(
                f"A package of models must be importable; there is no {name!r}. Put "
                "the folder that holds it on PYTHONPATH, or install it.",
                name=name,
            )
        _import_below(module)


def ImportAll() -> None:
    """Imports every module of `params`, so that ListModels is complete."""
    ImportModels(["params"])


def _import_below(package: ModuleType) -> None:
    """Imports all modules below a package, except those made to be run."""
    paths = getattr(package, "__path__", ())
    for info in pkgutil.iter_modules(paths, f"{package.__name__}."):
        if not info.name.endswith(".__main__"):
            _import_below(importlib.import_module(info.name))


def _import_if_there(name: str) -> ModuleType | None:
    """Imports a module; None if it or a package it lies in does not exist."""
    if not all(name.split(".")):  # Python would take it for a relative one.
        return None
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # What the module itself imports may be missing too: that is shown as it is.
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            return None
        raise
