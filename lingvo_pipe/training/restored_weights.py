"""Weights of a trained model from a checkpoint, without what only training needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import tensorflow as tf

from lingvo_pipe.hyperparams.suggest import did_you_mean
from lingvo_pipe.training.checkpoint_files import (
    read_newest,
    read_through,
    stem_of,
    steps_in,
)
from lingvo_pipe.training.checkpoint_names import (
    describe,
    fault_lines,
    stored_variables,
)
from lingvo_pipe.training.exponential_moving_average import average_name

_STEP = "global_step"


def restore_weights(
    variables: Mapping[str, tf.Variable],
    directory: Path,
    checkpoint: str | None,
    log: Callable[[str], None],
) -> int:
    """Gives a model's variables the values that it is to be used with.

    These are the moving averages where the checkpoint has some, else the values.

    Args:
        variables: all of the model, by path.
        directory: where the run's checkpoints lie.
        checkpoint: the name of one of them, such as `ckpt-00000600`; None: the newest
            that can be read.
        log: takes a line about each newer one that can't be read.

    Returns:
        The checkpoint's step.

    Raises:
        ValueError: if there is no such checkpoint, it can't be read, or it holds
            another model's variables. No variable is changed then.
    """
    prefix, reader = _read(directory, checkpoint, log)
    stored = stored_variables(reader)
    _check(prefix, stored, variables)
    for path, variable in variables.items():
        average = average_name(path)
        name = average if average in stored else path
        value = reader.get_tensor(name)
        with tf.device(variable.device):
            variable.assign(tf.cast(value, variable.dtype))
    return int(reader.get_tensor(_STEP))


def _read(
    directory: Path, checkpoint: str | None, log: Callable[[str], None]
) -> tuple[str, tf.train.CheckpointReader]:
    if checkpoint is None:
        newest = read_newest(directory, log, "Name an earlier one by --checkpoint.")
        if newest is None:
            raise ValueError(
                f"A model must have been trained to be used; {directory} holds no "
                "checkpoints. Train first, or give the --logdir of a run."
            )
        return newest.prefix, newest.reader
    there = [stem_of(step) for step in steps_in(directory)]
    if checkpoint not in there:
        raise ValueError(
            f"A checkpoint must be one of the run's; there is no {checkpoint!r} in "
            f"{directory}.{did_you_mean(checkpoint, there)} It holds "
            f"{', '.join(there) or 'none'}."
        )
    prefix = str(directory / checkpoint)
    try:
        return prefix, read_through(prefix)
    except ValueError as error:
        raise ValueError(
            f"A checkpoint must be readable; {prefix} is damaged: {error}"
        ) from error


def _check(
    prefix: str,
    stored: Mapping[str, str],
    variables: Mapping[str, tf.Variable],
) -> None:
    here = {path: describe(v.dtype, v.shape) for path, v in variables.items()}
    missing = here.keys() - stored.keys()
    other = {path for path in here.keys() - missing if stored[path] != here[path]}
    faults = [
        *fault_lines("not there", missing, lambda path: f"{path}, {here[path]}"),
        *fault_lines(
            "of another shape or dtype",
            other,
            lambda path: f"{path}, here {here[path]}, there {stored[path]}",
        ),
    ]
    if faults:
        raise ValueError(
            f"A checkpoint must hold the model's variables; of these {prefix} has\n"
            + "\n".join(faults)
            + "\nUse the params that it was saved with, those in params.txt."
        )
