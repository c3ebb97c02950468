"""Runs the trainer in a process of its own, and reads what it leaves behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

import lingvo_pipe
from lingvo_pipe.training.run_lock import LOCK_NAME

DIGITS = "--model=image.digits.AmoebaNetDigits"

# The folder that lingvo_pipe, model_registry and params are imported from.
ROOT = Path(lingvo_pipe.__file__).parents[1]

Snapshot = dict[str, bytes | None]

_UNSET = ("BUILD_WORKING_DIRECTORY", "TF_CPP_MIN_LOG_LEVEL")


class CommandLine:
    """Runs Python programs in a folder, where they also keep their data sets.

    They see no GPU: all the devices they have are those that stand in for some.
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

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Starts Python with these arguments."""
        return subprocess.Popen(
            [sys.executable, *arguments],
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def start_trainer(self, *flags: str) -> subprocess.Popen[str]:
        """Starts the trainer."""
        return self.start("-m", "lingvo_pipe.trainer", *flags)

    def train(self, *flags: str) -> tuple[str, str]:
        """Trains; returns what was written to standard output and standard error."""
        trainer = self.start_trainer(*flags)
        output, errors = trainer.communicate()
        assert trainer.returncode == 0, f"{flags}:\n{output}{errors}"
        return output, errors


def saved_variables(logdir: Path, step: int) -> dict[str, bytes]:
    """The bytes of all variables in a checkpoint, by name."""
    reader = tf.train.load_checkpoint(str(logdir / "checkpoints" / f"ckpt-{step:08d}"))
    return {
        name: np.asarray(reader.get_tensor(name)).tobytes()
        for name in reader.get_variable_to_shape_map()
    }


def snapshot(folder: Path) -> Snapshot:
    """All files below a folder with their bytes, and directories.

    Data sets are left out, and who holds or held the lock of a run.
    """
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
        if "data_sets" not in path.parts and path.name != LOCK_NAME
    }
