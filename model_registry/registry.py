"""Models by name: registration and look-up."""

from __future__ import annotations

import difflib
import sys
from dataclasses import dataclass
from typing import Any, TypeVar

from model_registry import imports
from model_registry.datasets import dataset_params

ClassT = TypeVar("ClassT", bound=type)


@dataclass(frozen=True)
class _Registration:
    cls: type
    module: str
    file: str | None
    spec: Any  # Of the module; every execution of a module has its own.

    def __str__(self) -> str:
        place = f" in {self.file}" if self.file else ""
        return f"{self.module}.{self.cls.__qualname__}{place}"

    def replaces(self, old: _Registration) -> bool:
        """Whether this is `old` again: its module was reloaded, or its cell re-run."""
        same_name = str(self) == str(old)
        return same_name and (self.file is None or self.spec is not old.spec)


_registered: dict[str, _Registration] = {}


def RegisterSingleTaskModel(cls: ClassT) -> ClassT:
    """Class decorator that makes a model known by name.

    The name is the module's and the class's: class `Digits` of module
    `params.image.digits` is `image.digits.Digits`, class `Toy` of a user's module
    `my_models.toy` is `my_models.toy.Toy`, and of a script that is run, `Toy`.

    Args:
      cls: A class with methods Task and Model, which return Params, and a method for
        every data set, such as Train, which returns its Params.

    Returns:
      `cls`.

    Raises:
      TypeError: `cls` is no such class.
      ValueError: Another class has the name.
    """
    if not isinstance(cls, type):
        raise TypeError(f"RegisterSingleTaskModel must decorate a class; got {cls!r}.")
    missing = [m for m in ("Task", "Model") if not callable(getattr(cls, m, None))]
    if missing:
        raise TypeError(
            "A registered model must have methods Task and Model; "
            f"{cls.__module__}.{cls.__qualname__} has no {' and no '.join(missing)}."
        )
    new = _registration(cls)
    name = _name_of(new)
    old = _registered.get(name)
    if old is not None and not new.replaces(old):
        raise ValueError(
            f"A model must be registered once; {name!r} is {old} and now also {new}. "
            "Rename one of the classes."
        )
    _registered[name] = new
    return cls


def GetClass(name: str) -> type:
    """Returns the class registered as `name`; imports its module if need be.

    `family.file.Class` is looked for in the module `params.family.file`, then in the
    user's own `family.file`.

    Raises:
      LookupError: There is no such model; lists the names that there are.
    """
    name = name.removeprefix("params.")
    if name not in _registered:
        imports.import_module_of(name)
    if name not in _registered:
        raise LookupError(_not_found(name))
    return _registered[name].cls


def GetParams(name: str, dataset: str) -> Any:
    """Returns the Params of a model, its `input` being those of a data set.

    Args:
      name: The model's name.
      dataset: Name of the method for the data set, such as "Train".

    Raises:
      DatasetError: The model has no such data set.
      LookupError: There is no such model.
    """
    model = GetClass(name)()
    input_params = dataset_params(model, dataset)
    params = model.Model()
    params.input = input_params
    return params


def ListModels() -> list[str]:
    """Returns the names registered so far, sorted; ImportAll registers the rest."""
    return sorted(_registered)


def _registration(cls: type) -> _Registration:
    module = sys.modules.get(cls.__module__)
    spec = getattr(module, "__spec__", None)
    name = cls.__module__
    if name == "__main__" and spec is not None:
        name = spec.name  # `python -m my_models.toy` runs the module by its name.
    return _Registration(cls, name, getattr(module, "__file__", None), spec)


def _name_of(registration: _Registration) -> str:
    class_name = registration.cls.__name__
    if registration.module == "__main__":
        return class_name
    return f"{registration.module.removeprefix('params.')}.{class_name}"


def _not_found(name: str) -> str:
    incomplete = ""
    try:
        imports.ImportAll()
    except Exception as error:  # A broken model must not hide the misspelt one.
        incomplete = f" Some could not be imported: {error!r}."
    known = ListModels()
    near = [k for k in known if _class_of(k) == _class_of(name)]
    near += difflib.get_close_matches(name, known)
    hints = list(dict.fromkeys(near))[:3]
    others = f"Registered: {', '.join(known) or 'none'}."
    if hints:
        others = f"Did you mean {' or '.join(map(repr, hints))}?"
        others += f" --list_models lists all {len(known)}."
    return (
        f"A model must be named as it is registered; there is no {name!r}. "
        f"{others}{incomplete} A model of your own is "
        "found as `package.file.Class` if the folder of its package is on PYTHONPATH, "
        "or is where you start the trainer. Or have the package imported first: by "
        "the trainer's --model_imports=package, or by model_registry.ImportModels."
    )


def _class_of(name: str) -> str:
    return name.rpartition(".")[2].lower()
