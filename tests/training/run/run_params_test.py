"""A run's values are read as trained, and none makes its reader import a module."""

from __future__ import annotations

import dataclasses
import enum
import math
import random
from pathlib import Path
from typing import Any

import pytest
from absl import logging

import model_registry
from lingvo_pipe.hyperparams import templates, value_text
from lingvo_pipe.hyperparams.text_entries import Entry
from lingvo_pipe.training.run.changed_params import check_changes
from lingvo_pipe.training.run.run_directory import RunDirectory
from lingvo_pipe.training.run.run_params import _is_plain, params_of_run
from tests.support.cases import exhaustive
from tests.support.errors import fails

_MODEL = "image.digits.AmoebaNetDigits"
_TRAPS = [
    "type/trap/Trap",
    "params/trap/Trap",
    "enum/trap/Trap.A",
    "[func/trap/trap]",
    # Python's literals have comments; ours are words.
    "[1, #, type/trap/Trap\n]",
    "{'a': 1, #: 1, 'b': type/trap/Trap\n}",
    "{'kind': 'type\\x2ftrap\\x2fTrap'}",
]
_TOKENS = [*"[]{}(),:#\n '\"\\1a", *_TRAPS[:3], "'", "'", "type", "/", "\\x2f", "None"]


@dataclasses.dataclass
class Record:
    """A value with a class among its fields."""

    kind: type = int
    a: Any = None


class Color(enum.Enum):
    """A value of a few names."""

    RED = 1


class Imported(BaseException):
    """Stands for the import of a module."""


@pytest.fixture(autouse=True)
def _no_import(monkeypatch: pytest.MonkeyPatch) -> None:
    find = templates.find_symbol

    def find_symbol(text: str) -> Any:
        if "/" in text and not text.startswith("lingvo_pipe."):  # The model's own.
            raise Imported(text)
        return find(text)

    monkeypatch.setattr(templates, "find_symbol", find_symbol)


@pytest.mark.parametrize("value", [*_TRAPS, "[" * 5000])
def test_a_run_names_nothing_to_import(tmp_path: Path, value: str) -> None:
    assert _data_dir_of_run(tmp_path, value) is None


@pytest.mark.parametrize("value", ["/data/a", ["/a", "type/a/B"], {1: 2, "a": 3}])
def test_plain_values_are_taken(tmp_path: Path, value: Any) -> None:
    assert _data_dir_of_run(tmp_path, repr(value)) == value


@pytest.mark.parametrize(
    ("by_class", "trained"), [(0.1, 0), (0, 0.1), (1, 0.5), (1, math.inf), (0.5, 1)]
)
def test_a_number_has_the_type_of_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_class: float, trained: float
) -> None:
    """Once it was read like the class's number, and the weights were refused."""
    registered, path = model_registry.GetParams, "task.label_smoothing"

    def get_params(name: str, dataset: str) -> Any:
        return registered(name, dataset).Set(**{path: by_class})

    monkeypatch.setattr(model_registry, "GetParams", get_params)
    directory = RunDirectory(tmp_path, _MODEL)
    model = get_params(_MODEL, "Train").Set(**{path: trained})
    directory.write_params(model.ToText())
    value = params_of_run(directory, "Test").Get(path)
    assert (type(value), value) == (type(trained), trained)


def test_an_integer_equals_the_float_that_the_command_line_reads() -> None:
    assert check_changes("a : 0\nb : -7\n", "a : 0.0\nb : -7.0\n", []) == []
    for before, now in (
        ("0", "1.0"),
        ("0", "-0.0"),
        ("1", "True"),
        (str(2**53), str(2**53 + 1)),
    ):
        with fails(path="a"):
            check_changes(f"a : {before}\n", f"a : {now}\n", [])
    with fails(path="a"):  # It was an int of a param of ints.
        check_changes("a : 8\n", "a (float) : 8.0\n", [])


def test_transforms_that_are_not_taken_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(logging, "warning", lines.append)
    _data_dir_of_run(tmp_path, "'/data'")
    assert not lines
    p = _params_of_run(tmp_path, "input.eval_transforms : ", "[]", f"[{_TRAPS[1]}]")
    assert p.input.eval_transforms == []
    (line,) = lines
    assert f"input.eval_transforms : [{_TRAPS[1]}] -> []" in line


def _data_dir_of_run(folder: Path, value: str) -> Any:
    return _params_of_run(folder, "input.data_dir : ", "None", value).input.data_dir


def _params_of_run(folder: Path, head: str, by_class: str, value: str) -> Any:
    directory = RunDirectory(folder, _MODEL)
    text = model_registry.GetParams(_MODEL, "Train").ToText()
    entry = f"{head}{by_class}\n"
    assert text.count(entry) == 1
    text = text.replace(entry, f"{head}{value}\n")
    directory.params_path.write_text(f"# model: {_MODEL}\n{text}")
    return params_of_run(directory, "Test")


def _random_texts(num: int) -> list[str]:
    draw = random.Random(1)
    opened = [*_TRAPS, "[]", "{'kind': 'a'}", "'a/b'"]
    texts = []
    for _ in range(num):
        text = draw.choice(opened)
        for _ in range(draw.randrange(4)):
            at = draw.randrange(len(text) + 1)
            text = text[:at] + draw.choice(_TOKENS) + text[at + draw.randrange(2) :]
        texts.append(text)
    return texts


@pytest.mark.filterwarnings("ignore:invalid escape sequence")
@pytest.mark.parametrize("num_texts", [2_000, exhaustive(20_000)])
def test_what_is_read_imports_nothing(num_texts: int) -> None:
    """Whatever kind of value a text is read as."""
    num_plain = num_imports = 0
    for text in _random_texts(num_texts):
        is_plain = _is_plain(Entry("a", text, ""))
        num_plain += is_plain
        for like in (None, Record(), [1], {"a": 1}, "a", int, len, Color.RED, 1.0):
            try:
                value_text.read_value(text, like)
            except (ValueError, RecursionError):
                continue
            except Imported:
                num_imports += 1
                assert not is_plain, (text, like)
    assert num_plain > num_texts / 20
    assert num_imports > num_texts / 20
