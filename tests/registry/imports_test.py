"""Packages of models are imported; unknown models are answered by known ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import model_registry
from lingvo_pipe.core.errors import UserImportError, UserLookupError, UserTypeError
from tests.registry.written_models import write, write_model
from tests.support.errors import fails

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
    with fails(UserLookupError, got="b.B") as info:
        model_registry.GetClass("b.B")
    assert "params.broken: ZeroDivisionError" in info.value.hint
    assert "params.deep: " in info.value.hint


@pytest.mark.parametrize(
    "name", ["no_such", "no_such.below", "my_models.no_such", ".my_models", ""]
)
def test_a_missing_package_is_refused(folder: Path, name: str) -> None:
    write_model(folder, "my_models/a.py", "A")
    with fails(UserImportError, got=name):
        model_registry.ImportModels([name])


@pytest.mark.parametrize(
    "name", ["my_modles", "my_models.phtos", "my_models/photos.py"]
)
def test_a_misspelt_package_is_suggested(folder: Path, name: str) -> None:
    write_model(folder, "my_models/photos.py", "A")
    (folder / "my_models/__init__.py").unlink()  # As users write it.
    with fails(UserImportError, got=name) as info:
        model_registry.ImportModels([name])
    assert "'my_models" in info.value.hint


def test_import_models_takes_a_list() -> None:
    with fails(UserTypeError, path="ImportModels", got="my_models"):
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
    for name in ("image.digits.AmobaNetDigits", "zzz", ""):
        with fails(UserLookupError, path="model", got=name) as info:
            model_registry.GetClass(name)
        assert "--list_models lists all 2." in info.value.hint


@pytest.mark.parametrize("name", ["digits", "image.digits.Other", "Amoeba"])
def test_a_part_of_a_name_suggests_five_names(folder: Path, name: str) -> None:
    for number in range(9):
        write_model(folder, f"params/image/digits{number}.py", "AmoebaNet")
    with fails(UserLookupError) as info:
        model_registry.GetClass(name)
    assert len(re.findall(r"'image\.digits\d", info.value.hint)) == 5


@pytest.mark.parametrize(
    "name", ["Words", "mt.words.Words", "lm.wrds.Words", "words", "lm.words.Wodrs"]
)
def test_a_misspelt_name_suggests_the_whole_name(folder: Path, name: str) -> None:
    write_model(folder, "params/lm/words.py", "Words")
    with fails(UserLookupError, got=name) as info:
        model_registry.GetClass(name)
    assert info.value.hint.startswith("Did you mean 'lm.words.Words'?")


@pytest.mark.parametrize("name", ["my_models.toy.Tyo", "my_modles.toy.Toy"])
def test_a_users_misspelt_model_is_suggested(folder: Path, name: str) -> None:
    write_model(folder, "my_models/toy.py", "Toy")
    model_registry.ImportModels(["my_models"])
    with fails(UserLookupError, got=name) as info:
        model_registry.GetClass(name)
    assert info.value.hint.startswith("Did you mean 'my_models.toy.Toy'?")


@pytest.mark.parametrize("name", [".", ".toy.Toy", "my_models..Toy", "toy/my.Toy"])
def test_a_malformed_name_is_refused(name: str) -> None:
    with fails(UserLookupError, got=name):
        model_registry.GetClass(name)
