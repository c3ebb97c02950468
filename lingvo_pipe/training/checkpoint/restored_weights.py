"""Restores the weights of a trained model, without the state of its training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import tensorflow as tf

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.core.near_names import did_you_mean
from lingvo_pipe.training.checkpoint import checkpoint_contents
from lingvo_pipe.training.checkpoint.checkpoint_files import (
    read_newest,
    read_through,
    stem_of,
    steps_in,
)
from lingvo_pipe.training.optim.exponential_moving_average import average_name


def restore_weights(
    variables: Mapping[str, tf.Variable],
    directory: Path,
    checkpoint: str | None,
    log: Callable[[str], None],
) -> int:
    """Restores a model's variables, or their averages if any, and returns the step.

    `checkpoint` is a name such as `ckpt-00000600`. If it is None, the newest intact
    checkpoint is restored, and `log` gets a line about each damaged one.

    Raises:
        ValueError: if there is no checkpoint, it is damaged, or it holds another
            model's variables. Nothing is changed then.
    """
    prefix, reader = _read(directory, checkpoint, log)
    stored = checkpoint_contents.stored_variables(reader)
    if problems := checkpoint_contents.mismatches(variables, stored):
        raise UserValueError(
            f"{prefix}: expected the variables of the model, got\n"
            + "\n".join(problems)
            + "\nUse the params it was saved with, those in params.txt."
        )
    assign_weights(variables, {path: path for path in variables}, reader)
    return int(reader.get_tensor("global_step"))


def assign_weights(
    variables: Mapping[str, tf.Variable],
    names: Mapping[str, str],
    reader: tf.train.CheckpointReader,
    use_averages: bool = True,
) -> list[str]:
    """Assigns the values, or averages, under `names`, and returns the names used."""
    used = []
    for path, name in names.items():
        average, variable = average_name(name), variables[path]
        has_average = use_averages and reader.has_tensor(average)
        used.append(average if has_average else name)
        with tf.device(variable.device):
            variable.assign(tf.cast(reader.get_tensor(used[-1]), variable.dtype))
    return used


def _read(
    directory: Path, checkpoint: str | None, log: Callable[[str], None]
) -> tuple[str, tf.train.CheckpointReader]:
    if checkpoint is None:
        newest = read_newest(directory, log, "Name an earlier one by --checkpoint.")
        if newest is None:
            raise UserValueError(
                f"{directory}: expected checkpoints of a trained model, found none. "
                "Train first, or give the --logdir of a run."
            )
        return newest.prefix, newest.reader
    saved = [stem_of(step) for step in steps_in(directory)]
    if checkpoint not in saved:
        raise UserValueError(
            f"--checkpoint: there is no {checkpoint!r} in {directory}."
            f"{did_you_mean(checkpoint, saved)} It holds {', '.join(saved) or 'none'}."
        )
    prefix = str(directory / checkpoint)
    return prefix, read_through(prefix, f"Checkpoint {prefix} is damaged: ")
