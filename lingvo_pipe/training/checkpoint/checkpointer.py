"""Checkpoints of named variables, which survive killed processes and damaged files.

Checkpoints have TensorFlow's format, with a checksum of every tensor. A checkpoint is
first written to the folder `incomplete`. Its files are then moved, the index last. The
checkpoint exists once the index has been moved, which is atomic. The file `checkpoint`
is for tools such as tf.train.latest_checkpoint. This library uses it only to notice
that checkpoints are missing.
"""

import contextlib
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf
from absl import logging

from lingvo_pipe.core.atomic_file import sync, write_atomically
from lingvo_pipe.core.errors import UserDamageError, UserValueError, Words
from lingvo_pipe.core.nests import on_this_host
from lingvo_pipe.core.regular_file import damaged, remove
from lingvo_pipe.pipeline.devices.device_names import device_name
from lingvo_pipe.training.checkpoint import checkpoint_files
from lingvo_pipe.training.checkpoint.checkpoint_contents import check_names


class Checkpointer:
    """The checkpoints of named variables in a directory.

    The constructor reads and writes no file.

    Args:
        directory: folder for the checkpoints alone.
        variables: variables by names such as `task/stem/conv/w`.
        keep: number of checkpoints to keep, at least 1. Older ones are deleted.
        log: callback for a line about each damaged checkpoint.

    Attributes:
        unreadable: steps of damaged checkpoints that the last `restore` found, until
            they are deleted.
    """

    def __init__(
        self,
        directory: str | Path,
        variables: Mapping[str, tf.Variable],
        keep: int = 5,
        log: Callable[[str], None] = logging.warning,
    ) -> None:
        self._directory = Path(directory)
        self._scratch = self._directory / "incomplete"
        self._variables = dict(variables)
        self._elsewhere = {
            name: variable
            for name, variable in variables.items()
            if device_name(variable.device).worker is not None
        }
        self._read_elsewhere = tf.function(self._values_elsewhere, autograph=False)
        self._keep = keep
        self._log = log
        self.unreadable: set[int] = set()

    def snapshot(self) -> dict[str, tf.Tensor]:
        """Returns the variables' current values, in this process's memory."""
        elsewhere = self._read_elsewhere() if self._elsewhere else {}
        return {
            name: elsewhere[name] if name in elsewhere else _in_memory(_read(v))
            for name, v in self._variables.items()
        }

    def save(
        self,
        step: int,
        values: Mapping[str, tf.Tensor] | None = None,
        pinned: int | None = None,
        when_written: Callable[[], None] | None = None,
    ) -> None:
        """Saves the variables as the state after `step` steps, if not yet saved.

        `values` are from `snapshot`, or else the current values. The checkpoint of the
        step `pinned` is kept beside the newest ones. `when_written` is called when the
        checkpoint exists, before older ones are deleted.

        Raises:
            ValueError: if a later step is already saved.
        """
        saved = self.intact_steps()
        if saved and step < saved[-1]:
            raise UserValueError(
                path="step",
                expected=f"at least {saved[-1]}, the newest in {self._directory}",
                got=step,
                hint="Restore that checkpoint first, or use another --logdir.",
            )
        if saved and step == saved[-1]:
            return
        self._delete_remains()
        self._write(step, self.snapshot() if values is None else values)
        if when_written is not None:
            when_written()
        for old in self.saved_steps()[: -self._keep]:
            if old != pinned:
                self._delete(old)
        self._write_state()

    def restore(self) -> int | None:
        """Restores the newest intact checkpoint. Returns its step, or None without one.

        Raises:
            ValueError: if all checkpoints are damaged, or the variables do not fit.
        """
        hint = "Put back a copy, or start a new run with another --logdir."
        newest = checkpoint_files.read_newest(self._directory, self._log, hint)
        if newest is None:
            return None
        check_names(newest.prefix, newest.reader, self._variables)
        for name, variable in self._variables.items():
            with tf.device(variable.device):
                variable.assign(newest.reader.get_tensor(name))
        self.unreadable = set(newest.damaged)
        return newest.step

    def roll_back(self) -> int:
        """Restores the newest intact checkpoint, and returns its step.

        Raises:
            ValueError: if there is none, or all are damaged.
        """
        step = self.restore()
        if step is None:
            raise damaged(
                self._directory, "a checkpoint to roll back to", Words("none")
            )
        return step

    def prefix(self, step: int) -> Path:
        """Returns the path of a step's checkpoint, as TensorFlow takes it."""
        return self._directory / checkpoint_files.stem_of(step)

    def saved_steps(self) -> list[int]:
        """Returns the steps of all checkpoints, ascending, damaged ones included."""
        return checkpoint_files.steps_in(self._directory)

    def intact_steps(self) -> list[int]:
        """Returns the steps of checkpoints, without those in `unreadable`."""
        return [step for step in self.saved_steps() if step not in self.unreadable]

    def is_damaged(self, step: int) -> bool:
        """Returns whether the checkpoint of a step is missing or damaged.

        A checkpoint that the system refuses to read now counts as intact.
        """
        prefix = str(self.prefix(step))
        try:
            with contextlib.suppress(OSError):
                checkpoint_files.read_through(prefix)
        except UserDamageError:
            return True
        return False

    def _write(self, step: int, values: Mapping[str, tf.Tensor]) -> None:
        self._directory.mkdir(exist_ok=True)  # Without parents: see `RunDirectory`.
        self._scratch.mkdir()
        with tf.device(_local_cpu()):
            tf.raw_ops.SaveV2(
                prefix=str(self._scratch / checkpoint_files.stem_of(step)),
                tensor_names=list(values),
                shape_and_slices=[""] * len(values),
                tensors=list(values.values()),
            )
        # Sorted: the data first, then the index.
        for path in sorted(self._scratch.iterdir()):
            sync(path)
            path.replace(self._directory / path.name)
        sync(self._directory)
        self._scratch.rmdir()

    def _write_state(self) -> None:
        stems = list(map(checkpoint_files.stem_of, self.saved_steps()))
        lines = [f'model_checkpoint_path: "{stems[-1]}"']
        lines += [f'all_model_checkpoint_paths: "{stem}"' for stem in stems]
        write_atomically(self._directory / "checkpoint", "\n".join(lines) + "\n")

    def _delete_remains(self) -> None:
        """Deletes damaged checkpoints, and incomplete files of killed processes."""
        remove(self._scratch)
        for step in self.unreadable:
            self._delete(step)
        self.unreadable.clear()
        indexed = {checkpoint_files.stem_of(step) for step in self.saved_steps()}
        for path in self._directory.glob("ckpt-*.data-*"):
            if path.stem not in indexed:
                remove(path)

    def _values_elsewhere(self) -> dict[str, tf.Tensor]:
        return on_this_host({k: v.value() for k, v in self._elsewhere.items()})

    def _delete(self, step: int) -> None:
        # The index first: without it the data files are not a checkpoint.
        remove(Path(f"{self.prefix(step)}.index"))
        for path in self._directory.glob(f"{checkpoint_files.stem_of(step)}.data-*"):
            remove(path)


def _in_memory(value: tf.Tensor) -> tf.Tensor:
    return value if _is_in_memory(value.device) else on_this_host(value)


def _read(variable: Any) -> tf.Tensor:
    if not isinstance(variable, tf.Variable):
        return variable.value()
    # Takes two thirds of the time of `value()`.
    handle, dtype = variable.handle, variable.dtype
    return tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)


@functools.cache
def _is_in_memory(device: str) -> bool:
    name = device_name(device)
    return name.worker is None and name.kind == "CPU"


def _local_cpu() -> str:
    with tf.device("/CPU:0"):
        return tf.constant(0).device
