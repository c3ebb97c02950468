"""Models by name, a model's data sets, and imports of modules that register models."""

from __future__ import annotations

import copy
import importlib.util
import inspect
import os
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias, TypeVar

from lingvo_pipe.core import errors
from lingvo_pipe.core.errors import Words
from lingvo_pipe.core.near_names import near_names, suggest

ClassT = TypeVar("ClassT", bound=type)
OnError: TypeAlias = Callable[[str, Exception], None]

_NOT_DATASETS = ("Task", "Model")
_MAX_NEAR = 5
_PARAMS = Path(__file__).absolute().parents[1] / "params"  # The library's models.
_REGISTERED = re.compile(
    r"^@model_registry\.RegisterSingleTaskModel\nclass (\w+)", re.MULTILINE
)
_OWN = (
    "A model of your own is found as `package.file.Class` if the folder of its package "
    "is on PYTHONPATH, or is where you start the trainer. Or import the package first: "
    "by the trainer's --model_imports=package, or by model_registry.ImportModels."
)


class DatasetError(errors.UserLookupError):
    """Error: a model does not have the data set."""


class _Registration:
    def __init__(self, cls: type):
        module = sys.modules.get(cls.__module__)
        # Each execution of a module has another spec.
        self.cls, self.spec = cls, getattr(module, "__spec__", None)
        self.file: str | None = getattr(module, "__file__", None)
        self.module = cls.__module__
        if self.module == "__main__" and self.spec is not None:
            # `python -m my_models.toy` runs the module by its name.
            self.module = self.spec.name
        package = "__main__." if self.module == "__main__" else "params."
        self.name = f"{self.module}.{cls.__name__}".removeprefix(package)

    def __str__(self) -> str:
        file = f" in {self.file}" if self.file else ""
        return f"{self.module}.{self.cls.__qualname__}{file}"

    def replaces(self, old: _Registration) -> bool:
        """Returns True if this class is `old`'s, made again by a rerun of its code."""
        same_name = str(self) == str(old)
        return same_name and (self.file is None or self.spec is not old.spec)


_registered: dict[str, _Registration] = {}


def RegisterSingleTaskModel(cls: ClassT) -> ClassT:
    """Registers a model by name. Use it as a class decorator.

    Class `Digits` of `params.image.digits` gets the name `image.digits.Digits`. Class
    `Toy` of a user's module `my_models.toy` gets the name `my_models.toy.Toy`, or `Toy`
    if the module is run as a script. The class has the methods Task and Model, and a
    method for each data set, such as Train. All of these methods return Params.

    Raises:
        TypeError: if the class lacks Task or Model, or is not a class.
        ValueError: if another class has the same name.
    """
    if not isinstance(cls, type):
        raise errors.UserTypeError(
            path="RegisterSingleTaskModel", expected="a class to decorate", got=cls
        )
    missing = [m for m in ("Task", "Model") if not callable(getattr(cls, m, None))]
    if missing:
        raise errors.UserTypeError(
            path=f"{cls.__module__}.{cls.__qualname__}",
            expected="methods Task and Model",
            got=Words(f"no {' and no '.join(missing)}"),
        )
    new = _Registration(cls)
    old = _registered.get(new.name)
    if old is not None and not new.replaces(old):
        expected = "one class of this name"
        hint = "Rename one of them."
        raise errors.UserValueError(
            path=new.name, expected=expected, got=Words(f"{old} and {new}"), hint=hint
        )
    _registered[new.name] = new
    return cls


def GetClass(name: str) -> type:
    """Returns the class registered as `name`, importing its module if necessary.

    `family.file.Class` is looked up in `params.family.file`, then in the user's
    `family.file`.

    Raises:
        LookupError: if no class is registered as `name`. The error suggests names.
    """
    name = name.removeprefix("params.")
    if name not in _registered:
        _import_module_of(name)
    if name not in _registered:
        broken: list[str] = []  # Modules whose errors must not hide a misspelt name.
        ImportAll(lambda module, error: broken.append(f"{module}: {error!r}"))
        incomplete = f"Some could not be imported: {'; '.join(broken)}." * bool(broken)
        raise _not_found(name, ListModels(), incomplete)
    return _registered[name].cls


def CheckName(name: str) -> None:
    """Raises LookupError if a name is neither this library's nor a package's.

    Searches the library's files. Importing them would take long.
    """
    name = name.removeprefix("params.")
    *modules, class_name = name.split(".")
    if name in _registered or not _is_of_library(name):
        return
    if modules and importlib.util.find_spec(modules[0]) is not None:
        return
    path = _PARAMS.joinpath(*modules).with_suffix(".py")
    is_file = bool(modules) and path.is_file()
    if is_file and re.search(rf"\b{class_name}\b", path.read_text(encoding="utf-8")):
        return
    raise _not_found(name, _names_in_files())


def _names_in_files() -> list[str]:
    """Returns the sorted names that the library's files register."""
    return sorted(
        f"{'.'.join(path.relative_to(_PARAMS).with_suffix('').parts)}.{class_name}"
        for path in _PARAMS.rglob("*.py")
        for class_name in _REGISTERED.findall(path.read_text(encoding="utf-8"))
    )


def GetName(model: Any) -> str:
    """Returns a model's registered name. Registers a class that has none yet.

    Raises:
        TypeError: if `model` is neither a name nor a model's class.
        ValueError: if another class has the same name.
    """
    if isinstance(model, str):
        return model
    if not isinstance(model, type):
        expected = "a model's class, or its registered name"
        raise errors.UserTypeError(path="model", expected=expected, got=model)
    for name, registration in _registered.items():
        if registration.cls is model:
            return name
    return GetName(RegisterSingleTaskModel(model))


def IsKnown(name: str) -> bool:
    """Returns True if a model is registered, or in a module of this library.

    Imports no other module, because the name may be from an untrusted file.
    """
    name = name.removeprefix("params.")
    if name not in _registered and _is_of_library(name):
        _import_if_exists(f"params.{name}".rpartition(".")[0])
    return name in _registered


def GetParams(name: str, dataset: str) -> Any:
    """Returns a model's Params, with the input of a data set, such as "Train".

    Raises:
        LookupError: if there is no such model, or the model has no such data set.
    """
    model = GetClass(name)()
    datasets = GetDatasets(type(model))
    if dataset not in datasets:
        expected = f"a method of {name} ({', '.join(datasets) or 'none'})"
        raise DatasetError(
            path="data set", expected=expected, got=dataset, names=datasets
        )
    # Copies, since a class may return the same Params from several calls.
    input_params = copy.deepcopy(getattr(model, dataset)())
    params = copy.deepcopy(model.Model())
    params.input = input_params
    return params


def GetDatasets(cls: type) -> list[str]:
    """Returns the sorted names of data sets: capitalized methods without arguments."""
    return sorted(
        name
        for name, member in inspect.getmembers(cls, inspect.isroutine)
        if name[0].isupper() and name not in _NOT_DATASETS and _takes_none(cls, name)
    )


def ListModels() -> list[str]:
    """Returns sorted names of the models registered so far. ImportAll registers all."""
    return sorted(_registered)


def _is_of_library(name: str) -> bool:
    """Returns True if `params.NAME` would be imported from this library's folder."""
    spec = importlib.util.find_spec("params")
    folders = (spec and spec.submodule_search_locations) or ()
    is_here = [Path(folder).absolute() for folder in folders] == [_PARAMS]
    is_here |= [Path(folder).resolve() for folder in folders] == [_PARAMS.resolve()]
    return is_here and all(part.isidentifier() for part in name.split("."))


def _import_module_of(name: str) -> None:
    module_name = name.rpartition(".")[0]
    if module_name and not _import_if_exists(f"params.{module_name}"):
        _import_if_exists(module_name)


def ImportModels(package_names: Iterable[str], on_error: OnError | None = None) -> None:
    """Imports packages, by full names, and all modules below them but `__main__`.

    Folders need an `__init__.py`. If a module below a package fails, `on_error` is
    called with the module's name and the error. Without `on_error`, raises the error.

    Raises:
        ImportError: if a package does not exist.
        TypeError: if `package_names` is a string.
    """
    if isinstance(package_names, str):
        raise errors.UserTypeError(
            path="ImportModels", expected="a list of names", got=package_names
        )
    for name in package_names:
        module = _import_if_exists(name)
        if module is None:
            raise errors.UserImportError(
                path="package of models",
                expected="the name of a package or module, such as my_models.photos",
                got=name,
                names=_siblings(name),
                hint="Put the folder that holds it on PYTHONPATH, or install it.",
            )
        below = getattr(module, "__path__", ())
        # The walk imports packages again; errors in them have been reported.
        for info in pkgutil.walk_packages(below, f"{name}.", onerror=lambda name: None):
            if info.name.endswith(".__main__"):
                continue
            try:
                importlib.import_module(info.name)
            except Exception as error:
                if on_error is None:
                    raise
                on_error(info.name, error)


def _siblings(name: str) -> list[str]:
    """Returns the modules beside the first part of `name` that does not exist."""
    parent, path = "", sys.path
    for part in name.split("."):
        siblings = [f"{parent}{module}" for module in _modules_in(path)]
        module = _import_if_exists(f"{parent}{part}")
        if module is None or not hasattr(module, "__path__"):
            return siblings
        parent, path = f"{parent}{part}.", list(module.__path__)
    return []


def _modules_in(path: Iterable[str]) -> list[str]:
    walks = (next(os.walk(place or "."), ("", [], [])) for place in path)
    folders = [name for _, names, _ in walks for name in names if name.isidentifier()]
    return [*folders, *(info.name for info in pkgutil.iter_modules(path))]


def ImportAll(on_error: OnError | None = None) -> None:
    """Imports every module of `params`, so that ListModels is complete."""
    ImportModels(["params"], on_error)


def _import_if_exists(name: str) -> ModuleType | None:
    """Imports a module. Returns None if the module or a package above it is missing."""
    if not all(name.split(".")):  # Python would treat it as a relative name.
        return None
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # An import inside the module may fail too: that error is raised unchanged.
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            return None
        raise


def _takes_none(cls: type, name: str) -> bool:
    member = inspect.getattr_static(cls, name)
    arguments = () if isinstance(member, (staticmethod, classmethod)) else (None,)
    try:
        inspect.signature(getattr(cls, name)).bind(*arguments)
    except TypeError:
        return False
    return True


def _not_found(
    name: str, registered: Sequence[str], incomplete: str = ""
) -> errors.UserLookupError:
    parts = _parts_of(name)
    by_class = {_class_of(x): x for x in reversed(registered)}
    near = [
        *(x for x in registered if _class_of(x) == _class_of(name)),
        *near_names(name, registered),
        *(by_class[c] for c in near_names(_class_of(name), by_class)),
        *(x for x in registered if name.lower() in x.lower() or parts & _parts_of(x)),
    ]
    hints = [
        suggest(list(dict.fromkeys(near))[:_MAX_NEAR]).strip(),
        f"--list_models lists all {len(registered)}.",
        incomplete,
        _OWN,
    ]
    expected = "the name of a registered model"
    hint = " ".join(filter(None, hints))
    return errors.UserLookupError(path="model", expected=expected, got=name, hint=hint)


def _parts_of(name: str) -> set[str]:
    return set(name.lower().split(".")) - {""}


def _class_of(name: str) -> str:
    return name.rpartition(".")[2].lower()
