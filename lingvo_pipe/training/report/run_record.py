"""Contents of a run's directory, for the run's page. Damage raises ValueError."""

import functools
import importlib.metadata
import itertools
import json
import math
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf
from google.protobuf.message import DecodeError

from lingvo_pipe.core import regular_file
from lingvo_pipe.core.errors import Words
from lingvo_pipe.training.checkpoint.checkpoint_files import (
    checkpoint_stats,
    stem_of,
    steps_in,
)
from lingvo_pipe.training.report.series import Series, series_by_metric
from lingvo_pipe.training.run.metrics_log import FILE_NAME, read_metrics
from lingvo_pipe.training.run.run_directory import RunDirectory

_NUM_SAMPLES = 10
_EVENTS_HINT = "Remove the file; metrics.jsonl has all but its images."
_PACKAGES = ("tensorflow", "keras", "numpy")


class Scores(NamedTuple):
    """The scores of a split's translations, with an image and sample sentences."""

    path: Path
    split: str
    document: dict[str, Any]
    png: bytes | None
    samples: list[list[str]]  # Each is [source, reference, hypothesis].


def read_series(
    directory: RunDirectory, records: Sequence[Mapping[str, Any]]
) -> dict[str, list[Series]]:
    """Returns each metric's series, one per split. The longest lists come first.

    `records` are the trainer's metrics. The evaler's and the decoder's are read.
    Metrics of single language pairs are left out.
    """
    metrics_path = directory.path / FILE_NAME
    if any(steps_in(directory.checkpoints_path)) and not metrics_path.exists():
        raise regular_file.damaged(metrics_path, "the run's metrics", Words("no file"))
    series: dict[str, list[Series]] = {}
    for origin, metrics in (
        ("", records),
        ("evaler", read_metrics(directory.evaler_path)),
        ("decoder", read_metrics(directory.decoder_path)),
    ):
        for metric, metric_series in series_by_metric(metrics, origin).items():
            if origin != "decoder" or "/" not in metric:
                series.setdefault(metric, []).extend(metric_series)
    return dict(sorted(series.items(), key=lambda item: -len(item[1])))


def read_scores(directory: RunDirectory) -> list[Scores]:
    """Returns the scores of each split's latest decoded checkpoint."""
    form, paths = re.compile(r"(.+)-(\d{8,})"), directory.decoder_path.glob("*.json")
    matches = [(form.fullmatch(path.stem), path) for path in paths]
    by_step = sorted(
        (match[1], int(match[2]), path) for match, path in matches if match
    )
    latest_scores = []
    for split, path in {split: path for split, _, path in by_step}.items():
        image = _read_bytes(path.with_suffix(".png"))
        samples = _samples(path.with_suffix(".jsonl"))
        latest_scores.append(
            Scores(path, split, regular_file.read_json(path), image, samples)
        )
    return latest_scores


def _samples(path: Path) -> list[list[str]]:
    hint = "Remove the file, or decode again by --job=decoder."
    lines = (regular_file.read_text(path, hint) or "").splitlines()
    try:
        records = map(json.loads, lines[:: max(len(lines) // _NUM_SAMPLES, 1)])
        return [
            [str(record[key]) for key in ("source", "reference", "hypothesis")]
            for record in itertools.islice(records, _NUM_SAMPLES)
        ]
    except regular_file.MALFORMED as error:
        expected = "lines of JSON with source, reference and hypothesis"
        raise regular_file.damaged(path, expected, error, hint) from error


def read_profiles(directory: RunDirectory) -> dict[int, tuple[bytes, str]]:
    """Returns (PNG, text) of each step profile in the directory, by step."""
    profiles = {}
    for path in directory.profile_path.glob("step-*.txt"):
        match = re.fullmatch(r"step-(\d{1,18})", path.stem)
        png, text = _read_bytes(path.with_suffix(".png")), regular_file.read_text(path)
        if match and png is not None and text is not None:
            profiles[int(match[1])] = png, text
    return profiles


def checkpoint_sizes(directory: RunDirectory) -> dict[int, int]:
    """Returns the size in bytes of each checkpoint, by step."""
    path = directory.checkpoints_path
    stats_by_step = {
        step: checkpoint_stats(path / stem_of(step)) for step in steps_in(path)
    }
    return {step: stats.num_bytes for step, stats in stats_by_step.items() if stats}


def last_images(
    directory: Path, last_step: float = math.inf
) -> dict[str, tuple[int, bytes]]:
    """Returns (step, PNG) of the last image with each name in TensorBoard's files.

    Images of later steps than `last_step` are left out: the run rolled back before
    them. Each file of events is read up to its first incomplete event.
    """
    images: dict[str, tuple[int, bytes]] = {}
    # Names begin with the time of creation, by a clock that may have been set back.
    for path in sorted(directory.glob("events.out.tfevents.*")):
        for event in _events(path):
            for value in event.summary.value:
                earlier, _ = images.get(value.tag, (-1, b""))
                is_image = value.metadata.plugin_data.plugin_name == "images"
                if is_image and earlier <= event.step <= last_step:
                    images[value.tag] = event.step, _png(path, value)
    return images


def software_versions() -> dict[str, str]:
    """Returns the versions of the running software by name."""
    versions = {"Python": platform.python_version()}
    versions |= {name: importlib.metadata.version(name) for name in _PACKAGES}
    try:
        versions["lingvo_pipe"] = importlib.metadata.version("lingvo_pipe")
    except importlib.metadata.PackageNotFoundError:
        versions["lingvo_pipe"] = "not installed: run from its sources"
    return versions


def _png(path: Path, value: Any) -> bytes:
    try:
        _, _, png = tf.make_ndarray(value.tensor)
        if not isinstance(png, bytes):
            raise ValueError(png)
        return png
    except regular_file.MALFORMED as error:
        expected = f"an image {value.tag!r}"
        raise regular_file.damaged(path, expected, error, _EVENTS_HINT) from error


def _read_bytes(path: Path) -> bytes | None:
    try:
        with regular_file.open_file(path, "rb") as file:
            return bytes(file.read())
    except FileNotFoundError:
        return None


def _events(path: Path) -> Iterator[tf.compat.v1.Event]:
    records = _records(str(path)).as_numpy_iterator()
    while True:
        try:
            yield tf.compat.v1.Event.FromString(next(records))
        except (StopIteration, tf.errors.OpError):
            return
        except DecodeError as error:
            raise regular_file.damaged(path, "events", error, _EVENTS_HINT) from error


@functools.cache  # TensorFlow never frees about 100 KiB of each data set.
def _records(path: str) -> tf.data.Dataset:
    return tf.data.TFRecordDataset(path)
