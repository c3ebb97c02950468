"""The data sets of a registered class: its methods such as Train, Dev and Test."""

from __future__ import annotations

import difflib
import inspect
from typing import Any

_NOT_DATASETS = ("Task", "Model")


class DatasetError(LookupError):
    """A model has no data set of that name."""


def GetDatasets(cls: type) -> list[str]:
    """Returns the names of a class's data sets, sorted.

    They are its methods that take no argument and start with a capital letter, except
    Task and Model.
    """
    return sorted(
        name
        for name, member in inspect.getmembers(cls, inspect.isroutine)
        if name[0].isupper() and name not in _NOT_DATASETS and _takes_none(cls, name)
    )


def dataset_params(model: Any, dataset: str) -> Any:
    """Returns what the method `dataset` of `model` returns.

    Raises:
      DatasetError: There is no such data set.
    """
    known = GetDatasets(type(model))
    if dataset not in known:
        near = difflib.get_close_matches(dataset, known, n=1, cutoff=0.4)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise DatasetError(
            f"A data set must be a method of the model; {type(model).__qualname__} has "
            f"no {dataset!r}.{hint} It has: {', '.join(known) or 'none'}."
        )
    return getattr(model, dataset)()


def _takes_none(cls: type, name: str) -> bool:
    """Whether the method can be called on an instance without arguments."""
    member = inspect.getattr_static(cls, name)
    arguments = () if isinstance(member, (staticmethod, classmethod)) else (None,)
    try:
        inspect.signature(getattr(cls, name)).bind(*arguments)
    except TypeError:
        return False
    return True
