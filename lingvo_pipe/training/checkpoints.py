"""Checkpoints of named variables that survive kills and damaged files.

A checkpoint of step 1200 is `ckpt-00001200.index` with its `ckpt-00001200.data-*`, in
the format of tf.train.Checkpoint, which keeps a checksum of every tensor. It is written
beside the others under another name; the renaming of the index, last and at once, makes
it exist. The directory's `checkpoint` file is kept for tools such as
tf.train.latest_checkpoint and never read here.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import tensorflow as tf
from absl import logging

from lingvo_pipe.training.atomic_file import sync, write_atomically
from lingvo_pipe.training.checkpoint_files import read_newest, stem_of, steps_in
from lingvo_pipe.training.checkpoint_names import check_names


class Checkpointer:
    """Saves and restores variables under their names, however objects are nested.

    Creating one reads and writes nothing yet.

    Args:
        directory: Where the checkpoints lie, and nothing else.
        variables: The variables by names such as `task/stem/conv/w`.
        keep: How many checkpoints to keep; older ones are deleted.
        log: Takes a line about each checkpoint that cannot be read.

    Raises:
        ValueError: If `keep` is not positive.
    """

    def __init__(
        self,
        directory: str | Path,
        variables: Mapping[str, tf.Variable],
        keep: int = 5,
        log: Callable[[str], None] = logging.warning,
    ) -> None:
        if keep < 1:
            raise ValueError(
                f"keep must be at least 1; got {keep}. Keep 1 checkpoint or more."
            )
        self._directory = Path(directory)
        self._scratch = self._directory / "incomplete"
        self._variables = dict(variables)
        self._checkpoint = tf.train.Checkpoint(variables=self._variables)
        # Variables on worker tasks too pass through this process, so that the workers
        # need not see its files.
        self._options = tf.train.CheckpointOptions(experimental_io_device=_local_cpu())
        self._keep = keep
        self._log = log
        self._unreadable: set[int] = set()

    def snapshot(self) -> dict[str, tf.Tensor]:
        """The variables' present values, in this process's memory."""
        with tf.device(_local_cpu()):
            return {
                name: tf.identity(variable.value())
                for name, variable in self._variables.items()
            }

    def save(
        self,
        step: int,
        values: Mapping[str, tf.Tensor] | None = None,
        pinned: int | None = None,
    ) -> None:
        """Saves the variables as the state after `step` steps.

        A step that is already saved is left as it is.

        Args:
            step: The number of steps.
            values: The variables' values after these, of `snapshot`; None: now.
            pinned: A step whose checkpoint stays, besides the newest ones.

        Raises:
            ValueError: If a later step is already saved.
        """
        saved = [s for s in self.saved_steps() if s not in self._unreadable]
        if saved and step < saved[-1]:
            raise ValueError(
                f"step must not lie before the newest checkpoint's, {saved[-1]}, in "
                f"{self._directory}; got {step}. Restore first, or use another "
                "--logdir."
            )
        if saved and step == saved[-1]:
            return
        self._delete_remains()
        self._write(step, self.snapshot() if values is None else values)
        for old in self.saved_steps()[: -self._keep]:
            if old != pinned:
                self._delete(old)
        self._write_state()

    def restore(self) -> int | None:
        """Restores the newest checkpoint that can be read.

        Returns:
            Its step, or None where nothing was ever saved.

        Raises:
            ValueError: If there are checkpoints but none can be read, or the newest
                that can be read holds other variables. No variable is changed then.
        """
        newest = read_newest(
            self._directory,
            self._log,
            "Put back a copy, or use another --logdir to start anew.",
        )
        if newest is None:
            return None
        check_names(newest.prefix, newest.reader, self._variables)
        self._checkpoint.read(newest.prefix, self._options).assert_consumed()
        self._unreadable = set(newest.damaged)
        return newest.step

    def saved_steps(self) -> list[int]:
        """Returns the steps of all checkpoints, ascending, damaged ones included."""
        return steps_in(self._directory)

    def _write(self, step: int, values: Mapping[str, tf.Tensor]) -> None:
        self._scratch.mkdir(parents=True)
        with tf.device(_local_cpu()):
            variables = {name: tf.Variable(value) for name, value in values.items()}
        stem = str(self._scratch / stem_of(step))
        tf.train.Checkpoint(variables=variables).write(stem, self._options)
        # The index sorts after the data, which it must not precede.
        for path in sorted(self._scratch.iterdir()):
            sync(path)
            path.replace(self._directory / path.name)
        sync(self._directory)
        self._scratch.rmdir()

    def _write_state(self) -> None:
        stems = [stem_of(step) for step in self.saved_steps()]
        lines = [f'model_checkpoint_path: "{stems[-1]}"']
        lines += [f'all_model_checkpoint_paths: "{stem}"' for stem in stems]
        write_atomically(self._directory / "checkpoint", "\n".join(lines) + "\n")

    def _delete_remains(self) -> None:
        """Deletes what damaged checkpoints and killed processes left behind."""
        if self._scratch.exists():
            shutil.rmtree(self._scratch)
        for step in self._unreadable:
            self._delete(step)
        self._unreadable.clear()
        indexed = {stem_of(step) for step in self.saved_steps()}
        for path in self._directory.glob("ckpt-*.data-*"):
            if path.stem not in indexed:
                path.unlink()

    def _delete(self, step: int) -> None:
        # The index first: without it the data are no checkpoint.
        (self._directory / f"{stem_of(step)}.index").unlink(missing_ok=True)
        for path in self._directory.glob(f"{stem_of(step)}.data-*"):
            path.unlink()


def _local_cpu() -> str:
    """Returns the full name of this process's CPU, job and task included."""
    with tf.device("/CPU:0"):
        return tf.constant(0).device
