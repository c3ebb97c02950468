"""Runs the trainer and other programs, and reads what they leave behind."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

import lingvo_pipe
from lingvo_pipe.training.run.run_directory import LOCK_NAME
from tests.support.forked_process import ForkedProcess

DIGITS = "--model=image.digits.AmoebaNetDigits"
SMALL = "--model=mine.small_model.Small"  # See `write_small_model`.

# The folder that lingvo_pipe, model_registry and params are imported from.
ROOT = Path(lingvo_pipe.__file__).parents[1]

Snapshot = dict[str, bytes | None]

_TRAINER = ("-m", "lingvo_pipe.trainer")
_UNSET = ("BUILD_WORKING_DIRECTORY", "TF_CPP_MIN_LOG_LEVEL")


class Outcome(NamedTuple):
    """The result of a program: its exit code and all that it has written."""

    code: int
    output: str
    errors: str


class CommandLine:
    """Runs Python programs in a folder, where they also keep their data sets.

    They are forks of a process that has imported TensorFlow, unless they are to be
    fresh. They see no GPU: all the devices they have are those that stand in for some.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self._environment = {k: v for k, v in os.environ.items() if k not in _UNSET} | {
            "CUDA_VISIBLE_DEVICES": "-1",
            "PYTHONPATH": os.pathsep.join(
                [str(ROOT), os.environ.get("PYTHONPATH", "")]
            ),
            "TFDS_DATA_DIR": str(folder / "data_sets"),
        }

    def start(self, *arguments: str, **options: Any) -> ForkedProcess:
        """Starts Python with these arguments; see ForkedProcess for the options."""
        return ForkedProcess(arguments, self._folder, self._environment, **options)

    def start_fresh(self, *arguments: str) -> subprocess.Popen[str]:
        """Starts Python with these arguments in a process of its own from the start."""
        return subprocess.Popen(
            [sys.executable, *arguments],
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def start_trainer(self, *flags: str, **options: Any) -> ForkedProcess:
        """Starts the trainer; see ForkedProcess for the options."""
        return self.start(*_TRAINER, *flags, **options)

    def start_fresh_trainer(self, *flags: str) -> subprocess.Popen[str]:
        """Starts the trainer in a process of its own from the start."""
        return self.start_fresh(*_TRAINER, *flags)

    def train(self, *flags: str) -> tuple[str, str]:
        """Trains; returns what was written to standard output and standard error."""
        code, output, errors = self.run(*_TRAINER, *flags)
        assert code == 0, f"{flags}:\n{output}{errors}"
        return output, errors

    def run(self, *arguments: str) -> Outcome:
        """Runs Python with these arguments."""
        program = self.start(*arguments)
        output, errors = program.communicate()
        return Outcome(program.wait(), output, errors)

    def run_trainers(self, command_lines: Iterable[Sequence[str]]) -> list[Outcome]:
        """Runs a trainer for each list of flags, two at a time."""
        with ThreadPoolExecutor(max_workers=2) as pool:
            return list(
                pool.map(lambda flags: self.run(*_TRAINER, *flags), command_lines)
            )


def messages(errors: str) -> list[str]:
    """Returns the lines of standard error, without what takes longer than expected."""
    return [x for x in errors.splitlines() if not re.search(r" \.\.\. \d+ s$", x)]


def write_small_model(folder: Path) -> None:
    """Puts the model that SMALL names where programs that run in `folder` find it."""
    (folder / "mine").mkdir()
    shutil.copy(Path(__file__).with_name("small_model.py"), folder / "mine")


def saved_variables(logdir: Path, step: int) -> dict[str, bytes]:
    """Returns the bytes of all variables in a checkpoint, by name."""
    reader = tf.train.load_checkpoint(str(logdir / "checkpoints" / f"ckpt-{step:08d}"))
    return {
        name: np.asarray(reader.get_tensor(name)).tobytes()
        for name in reader.get_variable_to_shape_map()
    }


def snapshot(folder: Path) -> Snapshot:
    """Returns all files below a folder with their bytes, and directories.

    Data sets are left out, and who holds or held the lock of a run.
    """
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
        if "data_sets" not in path.parts and path.name != LOCK_NAME
    }
