"""Models are registered, found, imported on demand, and listed.

Every test writes its models into a folder of its own and starts with an empty
registry.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

import model_registry
from lingvo_pipe.core.errors import UserTypeError
from tests.registry.written_models import TOY, write, write_model
from tests.support.errors import fails


class Toy:
    """A model without the decorator."""

    def Task(self) -> Any:
        return SimpleNamespace(input=None)

    Model = Task


# ---- Names.


def test_a_model_of_the_project_is_found_by_its_file_and_class(folder: Path) -> None:
    write_model(folder, "params/image/digits.py", "Digits")
    cls = model_registry.GetClass("image.digits.Digits")
    assert (cls.__module__, cls.__name__) == ("params.image.digits", "Digits")
    assert model_registry.GetClass("params.image.digits.Digits") is cls
    assert model_registry.ListModels() == ["image.digits.Digits"]


def test_a_users_model_is_found_by_its_module(folder: Path) -> None:
    write_model(folder, "my_models/toy.py", "Toy")
    write_model(folder, "toy_file.py", "Toy")
    assert model_registry.GetClass("my_models.toy.Toy").__module__ == "my_models.toy"
    assert model_registry.GetClass("toy_file.Toy").__module__ == "toy_file"
    assert model_registry.ListModels() == ["my_models.toy.Toy", "toy_file.Toy"]


def test_the_project_comes_before_the_user(folder: Path) -> None:
    write_model(folder, "params/toy.py", "Toy")
    write(folder, "toy.py", "raise AssertionError")
    assert model_registry.GetClass("toy.Toy").__module__ == "params.toy"


def test_the_decorator_returns_the_class() -> None:
    assert model_registry.RegisterSingleTaskModel(Toy) is Toy
    assert model_registry.ListModels() == [f"{__name__}.Toy"]
    assert model_registry.GetClass(f"{__name__}.Toy") is Toy


SCRIPT = (
    TOY
    + """
    name = model_registry.ListModels()[0]
    print(name, model_registry.GetClass(name) is Toy)
    """
)


@pytest.mark.parametrize(
    ("arguments", "key"),
    [(["my_models/toy.py"], "Toy"), (["-m", "my_models.toy"], "my_models.toy.Toy")],
)
def test_a_module_that_is_run(folder: Path, arguments: list[str], key: str) -> None:
    write(folder, "my_models/toy.py", SCRIPT)
    output = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={"PYTHONPATH": ":".join(filter(None, sys.path)), "PATH": ""},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert output == f"{key} True\n"


# ---- Registration.


@pytest.mark.parametrize("thing", [lambda: None, "Toy", Toy()])
def test_only_classes_are_registered(thing: Any) -> None:
    with fails(UserTypeError, path="RegisterSingleTaskModel", got=thing):
        model_registry.RegisterSingleTaskModel(thing)


def test_a_model_needs_task_and_model() -> None:
    class Bare:
        Model = 3

    with fails(UserTypeError, got="no Task and no Model"):
        model_registry.RegisterSingleTaskModel(Bare)
    assert model_registry.ListModels() == []


def test_two_models_of_one_name_are_refused(folder: Path) -> None:
    write_model(folder, "params/toys.py", "Toy")
    write_model(folder, "toys.py", "Toy")
    first = importlib.import_module("params.toys").Toy
    files = [
        f"{name} in {folder}/{path}"
        for name, path in (
            ("params.toys.Toy", "params/toys.py"),
            ("toys.Toy", "toys.py"),
        )
    ]
    with fails(path="toys.Toy", got=" and ".join(files)):
        importlib.import_module("toys")
    assert model_registry.GetClass("toys.Toy") is first


def test_a_class_defined_twice_in_a_file_is_refused(folder: Path) -> None:
    write(folder, "twice.py", TOY + TOY)
    with fails(path="twice.Toy"):
        importlib.import_module("twice")


def test_a_reloaded_module_registers_again(folder: Path) -> None:
    write_model(folder, "params/toys.py", "Toy")
    old = model_registry.GetClass("toys.Toy")
    new = importlib.reload(sys.modules["params.toys"]).Toy
    assert new is not old
    assert model_registry.GetClass("toys.Toy") is new


def test_a_cell_of_a_notebook_registers_again() -> None:
    for _ in range(2):
        namespace: dict[str, Any] = {"__name__": "cell"}
        exec(textwrap.dedent(TOY), namespace)
        assert model_registry.GetClass("cell.Toy") is namespace["Toy"]


# ---- Params and data sets.


def test_params_have_the_input_of_the_data_set(folder: Path) -> None:
    write_model(folder, "params/toys.py", "Toy")
    assert model_registry.GetParams("toys.Toy", "Train").input == "train 3"
    assert model_registry.GetParams("toys.Toy", "Test").input == "test"


def test_an_unknown_data_set_is_answered_by_the_known_ones(folder: Path) -> None:
    write_model(folder, "params/toys.py", "Toy")
    model_registry.RegisterSingleTaskModel(Toy)
    for name, dataset, known in (
        ("toys.Toy", "Tset", "Test, Train"),
        ("toys.Toy", "Task", "Test, Train"),
        (f"{__name__}.Toy", "x", "none"),
    ):
        expected = f"a method of {name} ({known})"
        with fails(model_registry.DatasetError, expected=expected, got=dataset):
            model_registry.GetParams(name, dataset)


class Shared(Toy):
    """A model that returns the same values from several calls."""

    INPUT: ClassVar[dict[str, str]] = {}
    TASK = SimpleNamespace(input=None, rate=1)

    def Train(self) -> Any:
        self.INPUT["split"] = "train"
        return self.INPUT

    def Test(self) -> Any:
        self.INPUT["split"] = "test"
        return self.INPUT

    def Model(self) -> Any:
        return self.TASK


def test_params_of_one_call_are_not_changed_by_others() -> None:
    name = model_registry.GetName(Shared)
    train, test = (model_registry.GetParams(name, x) for x in ("Train", "Test"))
    train.rate = 2
    assert [x.input["split"] for x in (train, test)] == ["train", "test"]
    assert test.rate == model_registry.GetParams(name, "Train").rate == 1


class WithManyMembers(Toy):
    CONSTANT = 1

    class Nested:
        pass

    def Dev(self) -> None: ...

    def Options(self, size: int = 3) -> None: ...

    @classmethod
    def OfClass(cls) -> None: ...

    @staticmethod
    def OfNone() -> None: ...

    @property
    def Property(self) -> None: ...

    def Needs(self, argument: int) -> None: ...

    @staticmethod
    def StaticNeeds(argument: int) -> None: ...

    def helper(self) -> None: ...

    def _Hidden(self) -> None: ...


def test_data_sets_are_the_public_methods_without_arguments() -> None:
    datasets = model_registry.GetDatasets(WithManyMembers)
    assert datasets == ["Dev", "OfClass", "OfNone", "Options"]
