"""The metrics of a run: lines of JSON, and events for TensorBoard.

`metrics.jsonl` has one object per line, such as

    {"step": 100, "split": "train", "loss": 0.25}

Numbers that are not finite are the strings "NaN", "Infinity" and "-Infinity". Images,
texts and histograms are events only.
"""

import contextlib
import json
import math
import os
import re
import struct
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, SupportsFloat, SupportsInt

import numpy as np
import tensorflow as tf
from absl import logging
from tensorflow.python.ops.summary_ops_v2 import import_event

from lingvo_pipe.core import regular_file
from lingvo_pipe.core.atomic_file import sync, write_atomically
from lingvo_pipe.core.checks import is_count
from lingvo_pipe.core.errors import UserDamageError, UserValueError
from lingvo_pipe.training.run.run_directory import LOCK_NAME

FILE_NAME = "metrics.jsonl"
_KEYS = ("step", "split")
_NUM_BUCKETS = 30  # As in TensorBoard's own summaries.


def _metadata(plugin: str, data_class: str) -> Any:
    """Returns the metadata of a TensorBoard summary, without using TensorBoard."""
    return tf.compat.v1.SummaryMetadata(
        plugin_data={"plugin_name": plugin}, data_class=f"DATA_CLASS_{data_class}"
    )


_SCALAR = _metadata("scalars", "SCALAR")
_IMAGE = _metadata("images", "BLOB_SEQUENCE")
_TEXT = _metadata("text", "TENSOR")
_HISTOGRAM = _metadata("histograms", "TENSOR")


class MetricsLog(AbstractContextManager["MetricsLog"]):
    """A log of one run's metrics, which one process at a time may write.

    Opening the log drops an incomplete last line, and tells `log` so. It also drops the
    lines of steps after `resume_step`, since a resumed run writes them again. Their
    events stay, but an event tells TensorBoard to drop them.

    Raises:
        ValueError: if a line is damaged.
    """

    def __init__(
        self,
        logdir: str | Path,
        resume_step: int | None = None,
        log: Callable[[str], None] = logging.warning,
    ) -> None:
        self._logdir, self._resume_step = Path(logdir), resume_step
        self._logdir.mkdir(parents=True, exist_ok=True)
        self.path = self._logdir / FILE_NAME
        text = lines_until(self.path, math.inf if resume_step is None else resume_step)
        before = regular_file.read_text(self.path) or ""
        if before and not before.endswith("\n"):
            log(f"{self.path}: dropped its last line, which is incomplete.")
        if text != before:
            write_atomically(self.path, text)
        self._file = regular_file.open_file(self.path, "a")
        sync(self._logdir)
        self._writers: dict[str, tf.summary.SummaryWriter] = {}

    def write(
        self, step: SupportsInt, split: str, metrics: Mapping[str, SupportsFloat]
    ) -> None:
        """Writes a step's metrics for a split such as `train`. Flushes the files."""
        if not re.fullmatch(r"\w[\w.-]*", split):
            expected = "letters, digits, '_', '-' and '.', a letter or digit first"
            raise UserValueError(path="split", expected=expected, got=split)
        check_names(metrics)
        values = {name: float(value) for name, value in metrics.items()}
        self._write_line(int(step), split, values)
        self._write_events(int(step), split, values, _SCALAR)

    def contains(
        self, step: int, split: str, metrics: Mapping[str, SupportsFloat]
    ) -> bool:
        """Returns whether the log has a line with this step, split and metrics."""
        values = {name: float(value) for name, value in metrics.items()}
        record = {"step": step, "split": split, **values}
        return any(same_metrics(record, line) for line in read_metrics(self._logdir))

    def sync(self) -> None:
        """Waits until all lines are on disk.

        Raises:
            ValueError: if the file was replaced.
        """
        regular_file.check_present(self._file, self.path)
        with regular_file.naming(self.path):
            os.fsync(self._file.fileno())

    def write_page(
        self, step: int, split: str, name: str, image: bytes, text: str
    ) -> None:
        """Writes a PNG image and a verbatim text for TensorBoard."""
        verbatim = textwrap.indent(text, "    ")  # For Markdown.
        self._write_events(step, split, {f"{name}/text": verbatim}, _TEXT)
        self.write_images(step, split, {f"{name}/picture": image})

    def write_images(self, step: int, split: str, images: Mapping[str, bytes]) -> None:
        """Writes PNG images, by title, for TensorBoard."""
        events = {}
        for name, image in images.items():
            width, height = struct.unpack(">II", image[16:24])  # From the PNG's header.
            events[name] = [str(width).encode(), str(height).encode(), image]
        self._write_events(step, split, events, _IMAGE)

    def write_histograms(
        self, step: int, split: str, arrays: Mapping[str, Any]
    ) -> None:
        """Writes histograms of arrays for TensorBoard, counted by `buckets`."""
        counted = {name: buckets(values) for name, values in arrays.items()}
        self._write_events(step, split, counted, _HISTOGRAM)

    def close(self) -> None:
        """Closes the files."""
        with regular_file.naming(self.path):  # Closing tries again to write.
            self._file.close()
        for writer in self._writers.values():
            writer.close()

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _write_line(self, step: int, split: str, values: Mapping[str, float]) -> None:
        record = _encoded({"step": step, "split": split, **values})
        with regular_file.naming(self.path):
            self._file.write(json.dumps(record, allow_nan=False) + "\n")
            self._file.flush()

    def _write_events(
        self, step: int, split: str, values: Mapping[str, Any], metadata: Any
    ) -> None:
        # TensorFlow would create missing folders.
        regular_file.check_present(self._file, self.path)
        if split not in self._writers:
            path = str(self._logdir / split)
            self._writers[split] = tf.summary.create_file_writer(path)
            if self._resume_step is not None:
                with self._writers[split].as_default():
                    import_event(_start_after(self._resume_step))
        writer = self._writers[split]
        with writer.as_default(step=step):
            for name, value in values.items():
                tf.summary.write(name, tf.constant(value), metadata=metadata)
        writer.flush()


def _start_after(step: int) -> bytes:
    """Returns an event at which TensorBoard drops earlier events of later steps."""
    session = tf.compat.v1.SessionLog(status=tf.compat.v1.SessionLog.START)
    event = tf.compat.v1.Event(
        wall_time=time.time(), step=step + 1, session_log=session
    )
    return event.SerializeToString()


def check_names(names: Iterable[str]) -> None:
    """Raises ValueError if a metric has a name that the log cannot hold."""
    if taken := sorted(set(names) & set(_KEYS)):
        expected = "other names than step and split"
        raise UserValueError(path="metrics", expected=expected, got=taken)


@contextlib.contextmanager
def shared_log(directory: Path) -> Iterator[MetricsLog]:
    """Opens a log, created if missing, once no other process has it open."""
    directory.mkdir(exist_ok=True)
    with regular_file.open_file(directory / LOCK_NAME, "a") as file:
        regular_file.lock_file(file, directory / LOCK_NAME)
        with MetricsLog(directory) as log:
            yield log


def read_metrics(logdir: str | Path) -> list[dict[str, Any]]:
    """Returns the records in the complete lines of a run's `metrics.jsonl`.

    Raises:
        ValueError: if a line is damaged.
    """
    return [record for _, record in _read(Path(logdir) / FILE_NAME)]


def same_metrics(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Returns whether two records or maps of metrics are equal. NaN equals NaN."""
    return _encoded(first) == _encoded(second)


def buckets(values: Any) -> np.ndarray:
    """Counts the finite numbers of an array in N buckets of equal width.

    Returns float64 `[N, 3]`: each bucket's left edge, right edge and count, as from
    np.histogram. If all numbers are equal, there is one bucket of width 0. If there are
    no numbers, there is no bucket.
    """
    numbers = np.asarray(values).astype(np.float64).ravel()
    numbers = numbers[np.isfinite(numbers)]
    if not len(numbers):
        return np.zeros([0, 3])
    low, high = numbers.min(), numbers.max()
    if low == high:
        return np.array([[low, high, len(numbers)]])
    edges = np.linspace(low, high, _NUM_BUCKETS + 1)
    counts, _ = np.histogram(numbers, edges)
    return np.stack([edges[:-1], edges[1:], counts], axis=1)


def lines_until(path: Path, step: float) -> str:
    """Returns the complete lines in `metrics.jsonl` of steps up to `step`, as text."""
    return "".join(line for line, record in _read(path) if record["step"] <= step)


def _read(path: Path) -> list[tuple[str, dict[str, Any]]]:
    *lines, _ = (regular_file.read_text(path) or "").split("\n")
    return [
        (f"{line}\n", _parse(line, f"{path}:{number}"))
        for number, line in enumerate(lines, start=1)
    ]


def _parse(line: str, position: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
        metrics = {name: float(record[name]) for name in record if name not in _KEYS}
        step, split = record["step"], record["split"]
        if not (is_count(step, 0) and step < 2**63 and isinstance(split, str)):
            raise ValueError(step, split)
        return {"step": step, "split": split, **metrics}
    except regular_file.MALFORMED as error:
        raise UserDamageError(
            path=position,
            expected="a JSON object of step, split and numbers",
            got=line[:60],
            hint="Correct or remove the line.",
        ) from error


def _encoded(record: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a record that JSON can hold. Numbers that are not finite become texts."""
    return {
        key: value if key in _KEYS or math.isfinite(value) else json.dumps(value)
        for key, value in record.items()
    }
