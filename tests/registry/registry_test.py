"""Models are registered, found, imported on demand, and listed.

Every test writes its models into a folder of its own and starts with an empty
registry.
"""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import model_registry
from model_registry import registry

MODEL = """
    from types import SimpleNamespace

    import model_registry

    @model_registry.RegisterSingleTaskModel
    class NAME:
        SIZE = 3

        def Train(self):
            return f"train {self.SIZE}"

        def Test(self):
            return "test"

        def Task(self):
            return SimpleNamespace(input=None)

        def Model(self):
            return self.Task()
    """

TOY = MODEL.replace("NAME", "Toy")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yields an empty folder on Python's path, where `params` is found."""
    modules = dict(sys.modules)
    for name in [m for m in modules if m.partition(".")[0] == "params"]:
        del sys.modules[name]
    monkeypatch.setattr(registry, "_registered", {})
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in set(sys.modules) - set(modules):
        del sys.modules[name]
    sys.modules.update(modules)


def write(folder: Path, name: str, text: str) -> None:
    """Writes a module; the folders that lead to it become packages."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))
    for parent in list(Path(name).parents)[:-1]:
        (folder / parent / "__init__.py").touch()
    importlib.invalidate_caches()


def write_model(folder: Path, name: str, class_name: str) -> None:
    write(folder, name, MODEL.replace("NAME", class_name))


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
    with pytest.raises(
        TypeError, match=f"RegisterSingleTaskModel.*{re.escape(repr(thing))}"
    ):
        model_registry.RegisterSingleTaskModel(thing)


def test_a_model_needs_task_and_model() -> None:
    class Bare:
        Model = 3

    with pytest.raises(TypeError, match=r"Bare\b.*\bTask\b.*\bModel\b"):
        model_registry.RegisterSingleTaskModel(Bare)
    assert model_registry.ListModels() == []


def test_two_models_of_one_name_are_refused(folder: Path) -> None:
    write_model(folder, "params/toys.py", "Toy")
    write_model(folder, "toys.py", "Toy")
    first = importlib.import_module("params.toys").Toy
    tokens = ["'toys.Toy'", "params.toys.Toy", str(folder / "params/toys.py")]
    tokens += [" toys.Toy", str(folder / "toys.py")]
    with pytest.raises(ValueError, match=".*".join(map(re.escape, tokens))):
        importlib.import_module("toys")
    assert model_registry.GetClass("toys.Toy") is first


def test_a_class_defined_twice_in_a_file_is_refused(folder: Path) -> None:
    write(folder, "twice.py", TOY + TOY)
    with pytest.raises(ValueError, match=r"'twice\.Toy'.*twice\.py"):
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
    message = "Toy.*'Tset'.*'Test'.*Test, Train"
    with pytest.raises(model_registry.DatasetError, match=message):
        model_registry.GetParams("toys.Toy", "Tset")
    with pytest.raises(LookupError, match="Toy.*'Task'"):
        model_registry.GetParams("toys.Toy", "Task")
    model_registry.RegisterSingleTaskModel(Toy)
    with pytest.raises(model_registry.DatasetError, match="Toy.*'x'"):
        model_registry.GetParams(f"{__name__}.Toy", "x")


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


# ---- Import.


def test_import_models_imports_all_below_a_package(folder: Path) -> None:
    write_model(folder, "my_models/a.py", "A")
    write_model(folder, "my_models/deep/er/b.py", "B")
    write(folder, "my_models/__main__.py", "raise AssertionError")
    write_model(folder, "single.py", "C")
    model_registry.ImportModels(["my_models", "single"])
    names = ["my_models.a.A", "my_models.deep.er.b.B", "single.C"]
    assert model_registry.ListModels() == names


def test_import_all_imports_all_of_params(folder: Path) -> None:
    write_model(folder, "params/a.py", "A")
    write_model(folder, "params/deep/b.py", "B")
    model_registry.ImportAll()
    assert model_registry.ListModels() == ["a.A", "deep.b.B"]


def test_a_module_that_does_not_import_hides_no_other(folder: Path) -> None:
    write_model(folder, "params/a.py", "A")
    write(folder, "params/broken.py", "1 / 0")
    write(folder, "params/deep/__init__.py", "import not_installed")
    write_model(folder, "params/z.py", "Z")
    broken = {}
    model_registry.ImportAll(lambda name, error: broken.update({name: type(error)}))
    assert model_registry.ListModels() == ["a.A", "z.Z"]
    assert broken == {
        "params.broken": ZeroDivisionError,
        "params.deep": ModuleNotFoundError,
    }
    with pytest.raises(LookupError, match=r"\bparams\.broken\b.*\bparams\.deep\b"):
        model_registry.GetClass("b.B")


@pytest.mark.parametrize(
    "name", ["no_such", "no_such.below", "my_models.no_such", ".my_models", ""]
)
def test_a_missing_package_is_refused(folder: Path, name: str) -> None:
    write_model(folder, "my_models/a.py", "A")
    with pytest.raises(ImportError, match=f"'{re.escape(name)}'.*PYTHONPATH"):
        model_registry.ImportModels([name])


def test_import_models_takes_a_list() -> None:
    with pytest.raises(TypeError, match="ImportModels.*'my_models'"):
        model_registry.ImportModels("my_models")


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("import not_installed", ModuleNotFoundError, "'not_installed'"),
        ("from my_models import nope", ImportError, "'nope'.*'my_models'"),
        ("1 / 0", ZeroDivisionError, "division"),
    ],
)
@pytest.mark.parametrize("path", ["my_models", "params/my_models"])
def test_an_error_inside_a_module_is_raised_as_it_is(
    folder: Path, text: str, error: type[Exception], message: str, path: str
) -> None:
    write(folder, f"{path}/broken.py", text)
    write_model(folder, "my_models/fine.py", "Fine")
    with pytest.raises(error, match=message):
        model_registry.GetClass("my_models.broken.Toy")
    with pytest.raises(error, match=message):
        model_registry.ImportModels([path.replace("/", ".")])


# ---- Unknown models.


def test_an_unknown_model_is_answered_by_the_known_ones(folder: Path) -> None:
    write_model(folder, "params/image/digits.py", "AmoebaNetDigits")
    write_model(folder, "params/lm/words.py", "Words")
    names = r"'image\.digits\.AmobaNetDigits'.*'image\.digits\.AmoebaNetDigits'"
    ways = r"--model_imports=package.*model_registry\.ImportModels"
    with pytest.raises(LookupError, match=rf"{names}.*--list_models.*\b2\b.*{ways}"):
        model_registry.GetClass("image.digits.AmobaNetDigits")
    with pytest.raises(LookupError, match=r"'zzz'.*--list_models\b.*\b2\b"):
        model_registry.GetClass("zzz")


@pytest.mark.parametrize("name", ["digits", "image.digits.Other", "Amoeba"])
def test_a_part_of_a_name_suggests_five_names(folder: Path, name: str) -> None:
    for number in range(9):
        write_model(folder, f"params/image/digits{number}.py", "AmoebaNet")
    with pytest.raises(LookupError) as caught:
        model_registry.GetClass(name)
    assert len(re.findall(r"'image\.digits\d", str(caught.value))) == 5


@pytest.mark.parametrize("name", ["Words", "mt.words.Words", "lm.wrds.Words", "words"])
def test_the_class_alone_suggests_the_whole_name(folder: Path, name: str) -> None:
    write_model(folder, "params/lm/words.py", "Words")
    with pytest.raises(LookupError, match=rf"'{re.escape(name)}'.*'lm\.words\.Words'"):
        model_registry.GetClass(name)


def test_a_users_misspelt_model_is_suggested(folder: Path) -> None:
    write_model(folder, "my_models/toy.py", "Toy")
    message = r"'my_models\.toy\.Tyo'.*'my_models\.toy\.Toy'"
    with pytest.raises(LookupError, match=message):
        model_registry.GetClass("my_models.toy.Tyo")
    message = r"'my_modles\.toy\.Toy'.*'my_models\.toy\.Toy'"
    model_registry.ImportModels(["my_models"])
    with pytest.raises(LookupError, match=message):
        model_registry.GetClass("my_modles.toy.Toy")


@pytest.mark.parametrize("name", ["", ".", ".toy.Toy", "my_models..Toy", "toy/my.Toy"])
def test_a_malformed_name_is_refused(name: str) -> None:
    with pytest.raises(LookupError, match=f"'{re.escape(name)}'"):
        model_registry.GetClass(name)


def test_a_broken_model_does_not_hide_a_misspelt_one(folder: Path) -> None:
    write(folder, "params/broken.py", "1 / 0")
    message = r"'x\.Y'.*ZeroDivisionError"
    with pytest.raises(LookupError, match=message):
        model_registry.GetClass("x.Y")
