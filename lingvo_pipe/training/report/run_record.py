"""What the page of a run is made of, as it lies in the run's directory."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import platform
import re
from pathlib import Path
from typing import Any, NamedTuple

from lingvo_pipe.training.checkpoint_files import stem_of, steps_in
from lingvo_pipe.training.checkpoint_stats import checkpoint_stats
from lingvo_pipe.training.metrics_log import read_metrics
from lingvo_pipe.training.report.series import Series, series_by_metric
from lingvo_pipe.training.run_directory import RunDirectory
from lingvo_pipe.training.skipped_batches import SkippedBatches

_PACKAGES = ("tensorflow", "keras", "numpy")


def read_series(directory: RunDirectory) -> dict[str, list[Series]]:
    """All metrics by name: of the trainer, of evaluations beside it, of decoding.

    Those that are measured on most splits come first. Of decoding there are the means
    alone: pairs of languages have a table.

    Raises:
        ValueError: as of `read_metrics`.
    """
    decoded = [
        {name: value for name, value in record.items() if "/" not in name}
        for record in _records(directory.decoder_path)
    ]
    series: dict[str, list[Series]] = {}
    for records, origin in (
        (_records(directory.path), ""),
        (_records(directory.evaler_path), "evaler"),
        (decoded, "decoder"),
    ):
        for metric, found in series_by_metric(records, origin).items():
            series.setdefault(metric, []).extend(found)
    return dict(sorted(series.items(), key=lambda item: -len(item[1])))


def read_best(directory: RunDirectory) -> dict[str, Any]:
    """The best evaluation: step and metric; empty if none is looked for.

    Raises:
        ValueError: if its file is damaged.
    """
    return _json(directory.best_path) if directory.best_path.exists() else {}


def num_left_out(directory: RunDirectory) -> int:
    """How many batches were left out.

    Raises:
        ValueError: as of `SkippedBatches`.
    """
    return SkippedBatches(directory.skipped_batches_path).total


class Scores(NamedTuple):
    """What a decoding run reached.

    Attributes:
        split: what was translated.
        document: see `decoder_report`.
        png: the same as a picture, if there is one.
    """

    split: str
    document: dict[str, Any]
    png: bytes | None


def read_scores(directory: RunDirectory) -> list[Scores]:
    """Of each split the scores of its latest checkpoint that was decoded.

    Raises:
        ValueError: if a file is damaged.
    """
    latest: dict[str, tuple[int, Path]] = {}
    for path in directory.decoder_path.glob("*.json"):
        match = re.fullmatch(r"(.+)-(\d{8,})\.json", path.name)
        if match:
            split, step = match[1], int(match[2])
            latest[split] = max(latest.get(split, (-1, path)), (step, path))
    return [
        Scores(split, _json(path), _bytes(path.with_suffix(".png")))
        for split, (_, path) in sorted(latest.items())
    ]


def read_profiles(directory: RunDirectory) -> dict[int, tuple[bytes, str]]:
    """Picture and text of each step that was profiled; see `StepProfile`."""
    found = {}
    for path in directory.profile_path.glob("step-*.txt"):
        match, png = re.fullmatch(r"step-(\d+)", path.stem), path.with_suffix(".png")
        if match and png.exists():
            text = path.read_text(encoding="utf-8")
            found[int(match[1])] = png.read_bytes(), text
    return found


def checkpoint_sizes(directory: RunDirectory) -> dict[int, int]:
    """Bytes of each checkpoint by its step, ascending, but those deleted meanwhile."""
    path = directory.checkpoints_path
    found = {step: checkpoint_stats(path / stem_of(step)) for step in steps_in(path)}
    return {step: stats.num_bytes for step, stats in found.items() if stats}


def software_versions() -> dict[str, str]:
    """Of what runs here, by name."""
    versions = {"Python": platform.python_version()}
    versions |= {name: importlib.metadata.version(name) for name in _PACKAGES}
    try:
        versions["lingvo_pipe"] = importlib.metadata.version("lingvo_pipe")
    except importlib.metadata.PackageNotFoundError:
        versions["lingvo_pipe"] = "not installed: run from its sources"
    return versions


def param_value(params_text: str, path: str) -> Any:
    """A number, text or None among params; None as well if it is not there."""
    form = rf"{re.escape(path)}(?: \(\w+\))? : (.*)"
    match = re.search(f"^{form}$", params_text, re.MULTILINE)
    return ast.literal_eval(match[1]) if match else None


def _records(directory: Path) -> list[dict[str, Any]]:
    there = (directory / "metrics.jsonl").exists()
    return read_metrics(directory) if there else []


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(
            f"A file of a run must be JSON if it is called so; {path} is not: {error}. "
            "Remove it; what wrote it does so again."
        ) from error


def _bytes(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None
