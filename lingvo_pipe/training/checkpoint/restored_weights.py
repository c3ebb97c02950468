"""Restoration of a trained model's weights, without the optimizer's state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import tensorflow as tf

from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.training.checkpoint.checkpoint_contents import (
    mismatches,
    raise_mismatches,
    stored_variables,
)
from lingvo_pipe.training.checkpoint.checkpoint_files import (
    read_newest,
    read_through,
    stem_of,
    steps_in,
)
from lingvo_pipe.training.checkpoint.weight_files import WeightFile
from lingvo_pipe.training.optim.exponential_moving_average import average_name


def restore_weights(
    variables: Mapping[str, tf.Variable],
    directory: Path,
    checkpoint: str | None,
    log: Callable[[str], None],
) -> int:
    """Restores a model's variables from a checkpoint. Returns the checkpoint's step.

    A variable gets the value of its moving average, if the checkpoint has one.
    `checkpoint` is a name such as `ckpt-00000600`. If it is None, the newest intact
    checkpoint is restored, and `log` gets a line about each damaged one.

    Raises:
        ValueError: if it is missing, damaged or another model's. Nothing changes then.
    """
    prefix, reader = _read(directory, checkpoint, log)
    problems = mismatches(variables, stored_variables(reader))
    raise_mismatches(prefix, problems, "the --logdir of another run")
    assign_weights(variables, {path: path for path in variables}, reader)
    return int(reader.get_tensor("global_step"))


def assign_weights(
    variables: Mapping[str, tf.Variable],
    names: Mapping[str, str],
    reader: tf.train.CheckpointReader | WeightFile,
    use_averages: bool = True,
) -> list[str]:
    """Assigns values from a checkpoint or file to variables, and returns their names.

    `names` maps the paths of the variables to assign to names in the checkpoint. If
    `use_averages`, a variable gets the value of its moving average, if the checkpoint
    has one.
    """
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
                path=str(directory),
                expected="checkpoints of a trained model",
                got=Words("none"),
                hint="Train first, or give the --logdir of a run.",
            )
        return newest.prefix, newest.reader
    saved = [stem_of(step) for step in steps_in(directory)]
    if checkpoint not in saved:
        raise UserValueError(
            path="--checkpoint",
            expected=f"one in {directory}, {', '.join(saved) or 'which has none'}",
            got=checkpoint,
            names=saved,
        )
    prefix = str(directory / checkpoint)
    return prefix, read_through(prefix)
