"""Checkpoints of named variables that survive kills and damaged files.

A checkpoint of step 1200 is `ckpt-00001200.index` with its `ckpt-00001200.data-*`, in
TensorFlow's format, which keeps a checksum of every tensor; tf.train.load_variable
finds a variable there by its name. It is written beside the others under another name;
the renaming of the index, last and at once, makes it exist. The directory's
`checkpoint` file is kept for tools such as tf.train.latest_checkpoint and never read
here.
"""

from __future__ import annotations

import functools
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
        self._keep = keep
        self._log = log
        self._unreadable: set[int] = set()

    def snapshot(self) -> dict[str, tf.Tensor]:
        """The variables' present values, in this process's memory."""
        return {name: _in_memory(v.value()) for name, v in self._variables.items()}

    def save(
        self,
        step: int,
        values: Mapping[str, tf.Tensor] | None = None,
        pinned: int | None = None,
        when_written: Callable[[], None] | None = None,
    ) -> None:
        """Saves the variables as the state after `step` steps.

        A step that is already saved is left as it is.

        Args:
            step: The number of steps.
            values: The variables' values after these, of `snapshot`; None: now.
            pinned: A step whose checkpoint stays, besides the newest ones.
            when_written: Called when the checkpoint exists, and before others are
                deleted for it.

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
        if when_written is not None:
            when_written()
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
        for name, variable in self._variables.items():
            with tf.device(variable.device):
                variable.assign(newest.reader.get_tensor(name))
        self._unreadable = set(newest.damaged)
        return newest.step

    def saved_steps(self) -> list[int]:
        """Returns the steps of all checkpoints, ascending, damaged ones included."""
        return steps_in(self._directory)

    def _write(self, step: int, values: Mapping[str, tf.Tensor]) -> None:
        self._scratch.mkdir(parents=True)
        with tf.device(_local_cpu()):
            tf.raw_ops.SaveV2(
                prefix=str(self._scratch / stem_of(step)),
                tensor_names=list(values),
                shape_and_slices=[""] * len(values),
                tensors=list(values.values()),
            )
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


def _in_memory(value: tf.Tensor) -> tf.Tensor:
    """Copies what is on a device with a memory of its own, or of another process.

    So workers need not see this process's files, and a GPU need not keep two of each.
    """
    if _is_in_memory(value.device):
        return value
    with tf.device(_local_cpu()):
        return tf.identity(value)


@functools.cache
def _is_in_memory(device: str) -> bool:
    there, here = map(tf.DeviceSpec.from_string, (device, _local_cpu()))
    return (there.job, there.task, there.device_type) == (here.job, here.task, "CPU")


def _local_cpu() -> str:
    """Returns the full name of this process's CPU, job and task included."""
    with tf.device("/CPU:0"):
        return tf.constant(0).device
