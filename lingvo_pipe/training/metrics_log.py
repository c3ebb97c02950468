"""Metrics as lines of JSON and as events for TensorBoard, which gets more besides.

`metrics.jsonl` holds one object a line, such as

    {"step": 100, "split": "train", "loss": 0.25}

JSON has no numbers for what is not finite; those are the strings "NaN", "Infinity" and
"-Infinity", which float() reads.
"""

from __future__ import annotations

import json
import math
import os
import re
import struct
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, SupportsFloat, SupportsInt

import tensorflow as tf

from lingvo_pipe.training.atomic_file import sync, write_atomically
from lingvo_pipe.training.histograms import buckets

_FILE_NAME = "metrics.jsonl"
_KEYS = ("step", "split")


def _metadata(plugin: str, data_class: str) -> Any:
    """What tf.summary's functions write, which need TensorBoard to be installed."""
    return tf.compat.v1.SummaryMetadata(
        plugin_data={"plugin_name": plugin}, data_class=f"DATA_CLASS_{data_class}"
    )


_SCALAR = _metadata("scalars", "SCALAR")
_IMAGE = _metadata("images", "BLOB_SEQUENCE")
_TEXT = _metadata("text", "TENSOR")
_HISTOGRAM = _metadata("histograms", "TENSOR")


class MetricsLog:
    """Writes the metrics of one run. One process at a time may write a directory.

    Opening a log removes the lines that will be written again. Use it as a context
    manager, or close it. Where several processes write, see `shared_log`.

    Args:
        logdir: The directory of the run.
        resume_step: The step of the checkpoint that training goes on from, 0 where it
            starts anew: lines of later steps are dropped. None keeps all lines.

    Raises:
        ValueError: If a line of an earlier run is damaged, other than a last one that
            was cut short, which is dropped.
    """

    def __init__(self, logdir: str | Path, resume_step: int | None = None) -> None:
        self._logdir = Path(logdir)
        self._logdir.mkdir(parents=True, exist_ok=True)
        path = self._logdir / _FILE_NAME
        if path.exists():
            _rewind(path, math.inf if resume_step is None else resume_step)
        self._file = path.open("a", encoding="utf-8")
        sync(self._logdir)
        self._writers: dict[str, tf.summary.SummaryWriter] = {}

    def write(
        self, step: SupportsInt, split: str, metrics: Mapping[str, SupportsFloat]
    ) -> None:
        """Writes the metrics of one step; readers find them when this returns.

        Args:
            step: The steps trained so far.
            split: What was measured, such as `train` or `test`.
            metrics: Scalars by name.

        Raises:
            ValueError: If a metric is called `step` or `split`, or the split's name
                cannot be that of a directory.
        """
        if not re.fullmatch(r"\w[\w.-]*", split):
            raise ValueError(
                "split must be letters, digits, '_', '-' and '.', beginning with a "
                f"letter or digit; got {split!r}. Choose another name."
            )
        if taken := sorted(set(metrics) & set(_KEYS)):
            raise ValueError(
                f"metrics must not be called step or split; got {', '.join(taken)}. "
                "Choose other names."
            )
        values = {name: float(value) for name, value in metrics.items()}
        self._write_line(int(step), split, values)
        self._write_events(int(step), split, values, _SCALAR)

    def holds(
        self, step: int, split: str, metrics: Mapping[str, SupportsFloat]
    ) -> bool:
        """Whether a line says just this, as `same_metrics` compares.

        Args:
            step: As for `write`.
            split: Likewise.
            metrics: Likewise.
        """
        values = {name: float(value) for name, value in metrics.items()}
        sought = {"step": step, "split": split, **values}
        return any(same_metrics(sought, line) for line in read_metrics(self._logdir))

    def sync(self) -> None:
        """Waits until all lines are on disk, not with the system alone.

        Call it before a checkpoint is saved. Lines that a machine loses when it goes
        down are written again by a run that goes on from before them; a checkpoint
        that outlives the lines of its steps would leave a gap for ever.
        """
        os.fsync(self._file.fileno())

    def write_page(
        self, step: int, split: str, name: str, picture: bytes, text: str
    ) -> None:
        """Writes a picture and a text, to be seen in TensorBoard only.

        Args:
            step: The steps trained so far.
            split: As for `write`.
            name: What they show.
            picture: A PNG.
            text: Shown as it is, in columns.
        """
        verbatim = textwrap.indent(text, "    ")  # Markdown for that.
        self._write_events(step, split, {f"{name}/text": verbatim}, _TEXT)
        self.write_pictures(step, split, {f"{name}/picture": picture})

    def write_pictures(
        self, step: int, split: str, pictures: Mapping[str, bytes]
    ) -> None:
        """Writes pictures, to be seen in TensorBoard only.

        Args:
            step: The steps trained so far.
            split: As for `write`.
            pictures: PNGs by what they show.
        """
        images = {}
        for name, picture in pictures.items():
            # Where a PNG has them.
            width, height = struct.unpack(">II", picture[16:24])
            images[name] = [str(width).encode(), str(height).encode(), picture]
        self._write_events(step, split, images, _IMAGE)

    def write_histograms(
        self, step: int, split: str, arrays: Mapping[str, Any]
    ) -> None:
        """Writes how numbers are distributed, to be seen in TensorBoard only.

        Args:
            step: The steps trained so far.
            split: As for `write`.
            arrays: Numbers by what they are; see `buckets`.
        """
        counted = {name: buckets(values) for name, values in arrays.items()}
        self._write_events(step, split, counted, _HISTOGRAM)

    def close(self) -> None:
        """Closes the files; what was written stays."""
        self._file.close()
        for writer in self._writers.values():
            writer.close()

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _write_line(self, step: int, split: str, values: Mapping[str, float]) -> None:
        record = _encoded({"step": step, "split": split, **values})
        self._file.write(json.dumps(record, allow_nan=False) + "\n")
        self._file.flush()

    def _write_events(
        self, step: int, split: str, values: Mapping[str, Any], metadata: Any
    ) -> None:
        writer = self._writer(split)
        with writer.as_default(step=step):
            for name, value in values.items():
                tf.summary.write(name, tf.constant(value), metadata=metadata)
        writer.flush()

    def _writer(self, split: str) -> tf.summary.SummaryWriter:
        if split not in self._writers:
            path = str(self._logdir / split)
            self._writers[split] = tf.summary.create_file_writer(path)
        return self._writers[split]


def read_metrics(logdir: str | Path) -> list[dict[str, Any]]:
    """Returns the lines of a run's `metrics.jsonl`, a dict each.

    Raises:
        ValueError: If a line is damaged, other than a last one that was cut short,
            which is left out.
    """
    return [record for _, record in _read(Path(logdir) / _FILE_NAME)]


def same_metrics(
    first: Mapping[str, Any] | None, second: Mapping[str, Any] | None
) -> bool:
    """Whether two records, or two maps of metrics, or none, are the same.

    NaN, which equals no number, is the same as NaN.
    """
    if first is None or second is None:
        return first is second
    return _encoded(first) == _encoded(second)


def _rewind(path: Path, step: float) -> None:
    """Drops the lines of steps after `step`, and one that was cut short."""
    kept = "".join(line for line, record in _read(path) if record["step"] <= step)
    if kept != path.read_text(encoding="utf-8"):
        write_atomically(path, kept)


def _read(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """Returns each complete line with the record it holds."""
    *lines, _ = path.read_text(encoding="utf-8").split("\n")
    return [
        (f"{line}\n", _parse(line, f"{path}:{number}"))
        for number, line in enumerate(lines, start=1)
    ]


def _parse(line: str, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
        metrics = {name: float(record[name]) for name in record if name not in _KEYS}
        return {"step": int(record["step"]), "split": record["split"], **metrics}
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            "a line of metrics must be a JSON object of step, split and numbers; got "
            f"{line[:60]!r} at {where}. Mend or remove the line."
        ) from error


def _encoded(record: Mapping[str, Any]) -> dict[str, Any]:
    """A line as JSON can have it."""
    return {k: v if k in _KEYS else _encode(v) for k, v in record.items()}


def _encode(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
