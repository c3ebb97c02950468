"""A checkpoint that a new run takes first values from."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import tensorflow as tf

from lingvo_pipe.hyperparams.suggest import did_you_mean
from lingvo_pipe.training.checkpoint_files import read_newest, read_through
from lingvo_pipe.training.checkpoint_names import (
    NAMES_OF_RUNS,
    describe,
    fault_lines,
    stored_variables,
)
from lingvo_pipe.training.exponential_moving_average import average_name
from lingvo_pipe.training.init_rules import InitRules
from lingvo_pipe.training.keras_optimizer import LEARNER_NAME

_STEP = "global_step"
_PARAM = "init_from_checkpoint_rules"


@dataclass(frozen=True)
class InitSource:
    """A checkpoint, and what is taken from it.

    Attributes:
        rules: what is taken.
        prefix: the checkpoint's path without `.index`.
        reader: reads it.
        stored: dtype and shape of all that it holds, by name.
    """

    rules: InitRules
    prefix: str
    reader: tf.train.CheckpointReader
    stored: dict[str, str]

    @property
    def averages(self) -> set[str]:
        """The names of moving averages."""
        return {average_name(name) for name in self.stored} & self.stored.keys()

    @property
    def weights(self) -> set[str]:
        """The names of the model's own variables."""
        learners = {name for name in self.stored if name.startswith(f"{LEARNER_NAME}/")}
        return self.stored.keys() - self.averages - learners - NAMES_OF_RUNS


def open_source(rules: InitRules, log: Callable[[str], None]) -> InitSource:
    """Finds and reads a checkpoint.

    Args:
        rules: whose `checkpoint` is one, or a run's directory, or its `checkpoints`.
        log: takes a line about each newer checkpoint of the directory that can't be
            read.

    Raises:
        ValueError: if there is none, or it can't be read, or is not ours.
    """
    prefix, reader = _read(Path(rules.checkpoint).expanduser(), log)
    stored = stored_variables(reader)
    if _STEP not in stored:
        raise ValueError(
            f"{_PARAM} must name checkpoints of lingvo_pipe; {prefix} is another's: it "
            f"holds {sorted(stored)[:3]}."
        )
    return InitSource(rules, prefix, reader, stored)


def check_source(source: InitSource, variables: Mapping[str, tf.Variable]) -> None:
    """Checks that a checkpoint holds what is taken from it.

    Args:
        source: the checkpoint.
        variables: of the model, by path.

    Raises:
        ValueError: if it lacks a variable, or has it in another shape or dtype.
    """
    names, stored = source.rules.names, source.stored
    here = {
        path: describe(variables[path].dtype, variables[path].shape) for path in names
    }
    missing = {path for path in names if names[path] not in stored}
    other = {
        path for path in names.keys() - missing if stored[names[path]] != here[path]
    }

    def missing_text(path: str) -> str:
        near = did_you_mean(names[path], source.weights)
        return f"{names[path]}, for {path}.{near}"

    def other_text(path: str) -> str:
        return f"{path}, here {here[path]}, there {stored[names[path]]}"

    faults = [
        *fault_lines("not there", missing, missing_text),
        *fault_lines("of another shape or dtype", other, other_text),
    ]
    if faults:
        layer = min(missing | other).rpartition("/")[0]
        raise ValueError(
            f"{_PARAM} must lead to variables of the same shape and dtype; those of "
            f"{source.prefix} are\n"
            + "\n".join(faults)
            + "\nCorrect the formats, or leave variables out by an expression in the "
            f"second list, such as {re.escape(layer) + '/'!r}."
        )


def _read(
    path: Path, log: Callable[[str], None]
) -> tuple[str, tf.train.CheckpointReader]:
    if Path(f"{path}.index").is_file():
        try:
            return str(path), read_through(str(path))
        except ValueError as error:
            raise ValueError(
                f"A checkpoint in {_PARAM} must be readable; {path} is damaged: {error}"
            ) from error
    for directory in (path / "checkpoints", path):
        newest = read_newest(directory, log, f"Name another in {_PARAM}.")
        if newest is not None:
            return newest.prefix, newest.reader
    there = "holds no checkpoints" if path.is_dir() else "does not exist"
    raise ValueError(
        f"{_PARAM} must name checkpoints, such as RUN/checkpoints/ckpt-00000600, or "
        f"the directories of runs, which stand for their newest; {path} {there}. "
        "task.train.init_from_checkpoint_override names another for all that they say."
    )
