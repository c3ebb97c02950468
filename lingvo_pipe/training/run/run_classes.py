"""Checks that a label means the same class in all uses of a run's weights.

A label is a class's position in the input's `class_names`. A new or renamed folder of
images moves labels, without any error. So a run saves the names in `class_names.json`.
"""

import json
from pathlib import Path
from typing import Any

from lingvo_pipe.core.atomic_file import write_atomically
from lingvo_pipe.core.checks import is_sequence
from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.core.regular_file import damaged, read_json

_FILE = "class_names.json"


def known_class_names(input_generator: Any) -> list[str]:
    """Returns an input's class names, or [] if it has none or needs missing data."""
    try:
        names = getattr(input_generator, "class_names", None)
    except ValueError:
        return []
    return [] if names is None or callable(names) else list(map(str, names))


def write_class_names(
    directory: Path, input_generator: Any, is_resumed: bool = True
) -> None:
    """Writes an input's class names to a run's directory, unless it has as many.

    A run that is not resumed first removes the names of the run that it replaces.
    """
    if not is_resumed:
        (directory / _FILE).unlink(missing_ok=True)
    names = known_class_names(input_generator)
    if len(names) > len(read_class_names(directory)):
        write_atomically(directory / _FILE, json.dumps(names) + "\n")


def read_class_names(directory: Path) -> list[str]:
    """Returns a run's class names, or [] if it has none, as runs of old versions.

    Raises:
        ValueError: if the file is damaged.
    """
    names = read_json(directory / _FILE)
    if names is None:
        return []
    if not is_sequence(names) or not all(isinstance(name, str) for name in names):
        raise damaged(directory / _FILE, "a list of names of classes", names)
    return list(names)


def check_class_names(directory: Path, input_generator: Any) -> None:
    """Raises ValueError if a label of an input was another class's in training.

    The input may have fewer classes than the run, or more.
    """
    trained = read_class_names(directory)
    if moved := _first_moved(trained, known_class_names(input_generator)):
        label, before, now = moved
        file = directory / _FILE
        raise UserValueError(
            path="input",
            expected=f"{before!r} as the class of label {label}, as in training by "
            f"{file}",
            got=now,
            hint="Set the input's params as in the run's params.txt, and name the "
            f"folders of classes as before. If only names have changed, remove {file}.",
        )


def class_names_warning(train_input: Any, test_input: Any) -> str:
    """Returns a warning if a label is one class in training and another in the test."""
    names = map(known_class_names, (train_input, test_input))
    if not (moved := _first_moved(*names)):
        return ""
    label, trained, tested = moved
    return (
        f"warning: label {label} is the class {trained!r} in training and {tested!r} "
        "in the test."
    )


def _first_moved(before: list[str], now: list[str]) -> tuple[int, str, str] | None:
    pairs = enumerate(zip(before, now, strict=False))
    moved = ((label, old, new) for label, (old, new) in pairs if old != new)
    return next(moved, None)
