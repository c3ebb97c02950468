"""A label keeps its class from training to every use, or is refused."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lingvo_pipe.core.errors import UserDamageError, UserValueError
from lingvo_pipe.training.run.run_classes import (
    check_class_names,
    class_names_warning,
    known_class_names,
    read_class_names,
    write_class_names,
)
from tests.support.errors import fails
from tests.training.toy_run import Input, batch, make_task, run


def _input(*names: str) -> Any:
    return SimpleNamespace(class_names=names)


class NoData:
    """An input whose data set is missing."""

    @property
    def class_names(self) -> list[str]:
        raise UserValueError(path="dataset", expected="a folder", got=None)


def test_labels_of_the_same_classes_are_accepted(tmp_path: Path) -> None:
    write_class_names(tmp_path, _input("bee", "cat"))
    assert read_class_names(tmp_path) == ["bee", "cat"]
    for data in (_input("bee", "cat"), _input("bee"), _input("bee", "cat", "dog")):
        check_class_names(tmp_path, data)
        assert class_names_warning(_input("bee", "cat"), data) == ""
    for data in (NoData(), object(), SimpleNamespace(class_names=None)):
        check_class_names(tmp_path, data)
        assert known_class_names(data) == []


def test_a_run_keeps_the_names_of_classes_that_are_missing_later(
    tmp_path: Path,
) -> None:
    write_class_names(tmp_path, _input("bee", "cat", "dog"))
    write_class_names(tmp_path, _input("bee", "cat"))
    assert read_class_names(tmp_path) == ["bee", "cat", "dog"]


def test_labels_of_other_classes_are_refused(tmp_path: Path) -> None:
    moved = _input("ant", "bee", "cat")
    check_class_names(tmp_path, moved)  # A run of an old version.
    write_class_names(tmp_path, _input("bee", "cat"))
    with fails(path="input", got="ant") as info:
        check_class_names(tmp_path, moved)
    assert "'bee'" in info.value.expected
    with fails(path="input", got="dog"):
        check_class_names(tmp_path, _input("bee", "dog"))
    warning = class_names_warning(_input("bee", "cat"), moved)
    assert "'bee'" in warning
    assert "'ant'" in warning


def test_inputs_without_classes_write_nothing(tmp_path: Path) -> None:
    for data in (object(), NoData(), _input()):
        write_class_names(tmp_path, data)
    assert not list(tmp_path.iterdir())
    assert read_class_names(tmp_path) == []


@pytest.mark.parametrize("content", ["3", '"cat"', "[1]", "{"])
def test_a_damaged_file_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "class_names.json").write_text(content)
    with fails(UserDamageError, path=str(tmp_path / "class_names.json")):
        check_class_names(tmp_path, _input("bee"))


def test_a_run_does_not_resume_if_labels_have_moved(tmp_path: Path) -> None:
    data: Any = Input(*map(batch, range(2)))
    data.class_names = ["bee", "cat"]
    run(make_task(max_steps=1), data, tmp_path)
    assert json.loads((tmp_path / "class_names.json").read_text()) == ["bee", "cat"]
    data.class_names = ["ant", "bee"]
    with fails(path="input", got="ant"):
        run(make_task(max_steps=2), data, tmp_path)
