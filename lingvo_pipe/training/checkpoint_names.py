"""Compares the variables in a checkpoint with those of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import tensorflow as tf

from lingvo_pipe.hyperparams.suggest import did_you_mean

# What is neither a model's nor its optimizer's.
NAMES_OF_RUNS = frozenset({"global_step", "input_place", "skipped_steps"})
# A hyper-parameter, which comes from the params; earlier versions saved it.
LEARNING_RATE_NAME = "learner/learning_rate"

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
    stored = stored_variables(reader)
    wanted = {
        name: describe(variable.dtype, variable.shape)
        for name, variable in variables.items()
    }
    missing = wanted.keys() - stored.keys()
    unexpected = stored.keys() - wanted.keys() - {LEARNING_RATE_NAME}
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


def stored_variables(reader: tf.train.CheckpointReader) -> dict[str, str]:
    """Returns dtype and shape of each variable in a checkpoint, as from `describe`."""
    dtypes = reader.get_variable_to_dtype_map()
    shapes = reader.get_variable_to_shape_map()
    return {name: describe(dtypes[name], shapes[name]) for name in dtypes}


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
