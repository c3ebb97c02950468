"""Compares the variables in a checkpoint with those of a model."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

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
    stored = _stored_variables(reader)
    wanted = {
        name: _describe(variable.dtype, variable.shape)
        for name, variable in variables.items()
    }
    missing = wanted.keys() - stored.keys()
    unexpected = stored.keys() - wanted.keys()
    mismatched = {
        name for name in wanted.keys() & stored.keys() if wanted[name] != stored[name]
    }
    faults = [
        *_list(
            "missing",
            missing,
            lambda name: f"{name}, {wanted[name]}.{did_you_mean(name, unexpected)}",
        ),
        *_list("unexpected", unexpected, lambda name: f"{name}, {stored[name]}"),
        *_list(
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


def _stored_variables(reader: tf.train.CheckpointReader) -> dict[str, str]:
    """Returns dtype and shape of the variables in a checkpoint, by name."""
    dtypes = reader.get_variable_to_dtype_map()
    matches = {
        key: re.fullmatch(r"variables/(.*)/\.ATTRIBUTES/VARIABLE_VALUE", key)
        for key in dtypes
    }
    shapes = reader.get_variable_to_shape_map()
    return {
        _unescape(match[1]): _describe(dtypes[key], shapes[key])
        for key, match in matches.items()
        if match
    }


def _unescape(key: str) -> str:
    """Returns the name that TensorFlow writes with ".." for "." and ".S" for "/"."""
    return re.sub(r"\.(.)", lambda match: "/" if match[1] == "S" else ".", key)


def _describe(dtype: tf.DType, shape: Iterable[Any]) -> str:
    return f"{dtype.name} {list(shape)}"


def _list(title: str, names: set[str], describe: Callable[[str], str]) -> list[str]:
    """Returns a line for each name under a title, and only the first of very many."""
    if not names:
        return []
    lines = [f"    {describe(name)}" for name in sorted(names)[:_MAX_SHOWN]]
    if len(names) > _MAX_SHOWN:
        lines.append(f"    and {len(names) - _MAX_SHOWN} more")
    return [f"  {title} ({len(names)}):", *lines]
