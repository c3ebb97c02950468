"""Compares the variables in a checkpoint with those of a model."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from lingvo_pipe.hyperparams.suggest import did_you_mean

_MAX_SHOWN = 8


def check_names(
    checkpoint: str,
    reader: tf.train.CheckpointReader,
    variables: Mapping[str, tf.Variable],
) -> None:
    """Checks that a checkpoint holds exactly the variables of the model.

    Args:
        checkpoint: Its path, for the error.
        reader: Reads the checkpoint.
        variables: The variables of the model, by name.

    Raises:
        ValueError: If one is missing, unexpected, or of another shape or dtype. The
            error tells their numbers and the first of each kind, with near names.
    """
    stored = {name: v.description for name, v in stored_variables(reader).items()}
    wanted = {
        name: describe(variable.dtype, variable.shape)
        for name, variable in variables.items()
    }
    missing = wanted.keys() - stored.keys()
    unexpected = stored.keys() - wanted.keys()
    mismatched = {
        name for name in wanted.keys() & stored.keys() if wanted[name] != stored[name]
    }
    faults = [
        *fault_lines(
            "missing",
            missing,
            lambda name: f"{name}, {wanted[name]}.{did_you_mean(name, unexpected)}",
        ),
        *fault_lines("unexpected", unexpected, lambda name: f"{name}, {stored[name]}"),
        *fault_lines(
            "mismatched",
            mismatched,
            lambda name: f"{name}, saved as {stored[name]}, here {wanted[name]}",
        ),
    ]
    if faults:
        raise ValueError(
            "checkpoint must hold exactly the variables of the model; got "
            f"{checkpoint} with\n"
            + "\n".join(faults)
            + "\nRestore it with the params it was saved with, those in params.txt, or "
            "use another --logdir."
        )


class StoredVariable(NamedTuple):
    """A variable in a checkpoint.

    Attributes:
        key: what its reader knows it by.
        description: its dtype and shape, as from `describe`.
    """

    key: str
    description: str


def stored_variables(reader: tf.train.CheckpointReader) -> dict[str, StoredVariable]:
    """Returns the variables in a checkpoint, by name."""
    dtypes, shapes = (
        reader.get_variable_to_dtype_map(),
        reader.get_variable_to_shape_map(),
    )
    matches = {
        key: re.fullmatch(r"variables/(.*)/\.ATTRIBUTES/VARIABLE_VALUE", key)
        for key in dtypes
    }
    return {
        _unescape(match[1]): StoredVariable(key, describe(dtypes[key], shapes[key]))
        for key, match in matches.items()
        if match
    }


def _unescape(key: str) -> str:
    """Returns the name that TensorFlow writes with ".." for "." and ".S" for "/"."""
    return re.sub(r"\.(.)", lambda match: "/" if match[1] == "S" else ".", key)


def describe(dtype: tf.DType, shape: Iterable[Any]) -> str:
    """Returns dtype and shape of a variable as text."""
    return f"{dtype.name} {list(shape)}"


def fault_lines(
    title: str, names: Iterable[str], text_of: Callable[[str], str]
) -> list[str]:
    """Returns a line for each name under a title, and only the first of very many."""
    names = sorted(names)
    if not names:
        return []
    lines = [f"    {text_of(name)}" for name in names[:_MAX_SHOWN]]
    if len(names) > _MAX_SHOWN:
        lines.append(f"    and {len(names) - _MAX_SHOWN} more")
    return [f"  {title} ({len(names)}):", *lines]
