"""A source of initial values: another run's checkpoint, or a file of weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import tensorflow as tf

from lingvo_pipe.core.errors import UserDamageError, UserValueError, Words
from lingvo_pipe.core.regular_file import check_local, check_no_pattern
from lingvo_pipe.training.checkpoint import checkpoint_files
from lingvo_pipe.training.checkpoint.checkpoint_contents import (
    NAMES_OF_RUNS,
    stored_variables,
)
from lingvo_pipe.training.checkpoint.weight_files import (
    WeightFile,
    is_weight_file,
    open_weight_file,
)
from lingvo_pipe.training.optim.exponential_moving_average import average_name
from lingvo_pipe.training.optim.keras_optimizer import LEARNER_NAME
from lingvo_pipe.training.warm_start.init_rules import PARAM, SOURCE

_FILES = "the folder of a SavedModel, or a .safetensors, .npz, .h5 or .keras file"


@dataclass
class InitSource:
    """A source that is open. Tensors are read one by one."""

    path: str  # A checkpoint's path is without `.index`.
    reader: tf.train.CheckpointReader | WeightFile
    stored: dict[str, str]  # Dtype and shape of all tensors, by name.

    def __post_init__(self) -> None:
        names = self.stored.keys()
        self.averages = {average_name(name) for name in names} & names
        self.learners = {name for name in names if name.startswith(f"{LEARNER_NAME}/")}
        # The variables of the source's model.
        self.weights = names - self.averages - self.learners - NAMES_OF_RUNS


def open_source(source: str, param: str, log: Callable[[str], None]) -> InitSource:
    """Opens a source, given as a path. `log` gets a line about damaged checkpoints.

    Raises:
        ValueError: if it is missing, damaged or no source. The error names `param`.
    """
    check_local(param, source)
    path = Path(source).expanduser()
    if not path.is_file():
        check_no_pattern(param, str(path))
    if is_weight_file(path):
        file = open_weight_file(path, param)
        return InitSource(str(path), file, file.stored)
    if path.is_file():
        got = Words(f"{path}, a file of another kind")
        expected = f"the directory of a run, one of its checkpoints, {_FILES}"
        raise UserValueError(path=param, expected=expected, got=got)
    hint = f"It may also be {_FILES}."
    if param == PARAM:
        hint = f"{SOURCE} replaces the checkpoint of the rules."
    prefix = str(checkpoint_files.prefixes_at(path, param, hint)[-1])
    try:
        if prefix == str(path):
            reader = checkpoint_files.read_through(prefix)
        else:
            newest = checkpoint_files.read_newest(Path(prefix).parent, log, hint)
            assert newest is not None  # There was a prefix.
            prefix, reader = newest.prefix, newest.reader
    except UserDamageError as error:  # Of the other run.
        got = Words(f"{error.path} with {error.got}")
        expected = "an undamaged checkpoint"
        raise UserValueError(
            path=param, expected=expected, got=got, hint=hint
        ) from error
    stored = stored_variables(reader)
    if "global_step" not in stored:
        got = Words(f"{prefix}, which is another program's: {sorted(stored)[:3]}")
        expected = "a checkpoint of lingvo_pipe"
        raise UserValueError(path=param, expected=expected, got=got)
    return InitSource(prefix, reader, stored)
