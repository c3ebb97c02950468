"""One page about a run: `LOGDIR/report.html`, for any browser, without a network.

It shows what the run's directory holds: metrics as table and curves, pictures of the
last evaluation, translations, profiles, checkpoints, params; and the versions of the
software that wrote it. Whatever stands in a file is shown as text.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from lingvo_pipe.error_text import error_text
from lingvo_pipe.training.atomic_file import write_atomically
from lingvo_pipe.training.best_evaluation import SPLIT
from lingvo_pipe.training.report import run_record
from lingvo_pipe.training.report.axis import number_text
from lingvo_pipe.training.report.elements import Html, element
from lingvo_pipe.training.report.event_pictures import last_pictures
from lingvo_pipe.training.report.sections import (
    checkpoints_section,
    curves_section,
    facts,
    metrics_section,
    params_section,
    pictures_section,
    profile_section,
    scores_section,
    versions_section,
)
from lingvo_pipe.training.report.style import STYLE
from lingvo_pipe.training.run_directory import RunDirectory


def write_report(directory: RunDirectory) -> Path:
    """Writes the page, in place of an earlier one.

    Args:
        directory: of a run that has begun.

    Returns:
        The page's path.

    Raises:
        ValueError: if a file of the run is damaged; see `read_metrics`.
    """
    write_atomically(directory.report_path, "<!DOCTYPE html>\n" + _page(directory))
    return directory.report_path


def report_end(directory: RunDirectory, log: Callable[[str], None]) -> None:
    """Writes the page of a run that has ended, if that is possible.

    Whatever is wrong with the page is told and no more: what was trained is on file,
    and a scheduler that took the run for a failed one would start it again.

    Args:
        directory: of the run.
        log: takes a line of text for the user.
    """
    try:
        write_report(directory)
    except Exception as error:
        log(
            f"The run lacks nothing but its report: {error_text(error)}\n"
            f"--mode=report --logdir={directory.path} tries again."
        )


def _page(directory: RunDirectory) -> Html:
    title = f"{directory.model_name}: report of a run"
    on_phones = "width=device-width, initial-scale=1"
    head = [
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content=on_phones),
        element("title", title),
        element("style", Html(STYLE)),
    ]
    parts = [element("h1", directory.model_name), *_parts(directory)]
    body = element("body", element("main", *parts))
    return element("html", element("head", *head), body, lang="en")


def _parts(directory: RunDirectory) -> Iterator[Html]:
    params = directory.read_params() or ""
    series = run_record.read_series(directory)
    best = run_record.read_best(directory)
    sizes = run_record.checkpoint_sizes(directory)
    last_step = max([0, *sizes, *(s.last.step for m in series.values() for s in m)])
    num_left_out = run_record.num_left_out(directory)
    yield facts(_facts(params, last_step, num_left_out, best))
    best_metric = run_record.param_value(params, "task.eval.best_metric")
    yield metrics_section(series, best_metric)
    if series:
        yield curves_section(series)
    pictures = last_pictures(directory.path / SPLIT)
    if pictures:
        shown = {f"{name}, step {p.step:,}": p.png for name, p in pictures.items()}
        yield pictures_section("The last evaluation", shown)
    for scores in run_record.read_scores(directory):
        yield scores_section(*scores)
    profiles = run_record.read_profiles(directory)
    if profiles:
        yield profile_section(profiles)
    yield checkpoints_section(sizes, best.get("step"))
    yield params_section(params)
    yield versions_section(run_record.software_versions())


def _facts(
    params: str, last_step: int, num_left_out: int, best: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """What is said first."""
    max_steps = run_record.param_value(params, "task.train.max_steps")
    of = f" of {max_steps:,}" if max_steps else ""
    yield "Trained", f"{last_step:,}{of} steps"
    if num_left_out:
        yield "Left out", f"{num_left_out:,} batches, for spikes of the loss"
    if best:
        found = [f"{k} {number_text(float(v))}" for k, v in best.items() if k != "step"]
        yield "Best evaluation", f"step {best['step']:,}: {', '.join(found)}"
    now = datetime.datetime.now().astimezone()
    yield "Report written", now.strftime("%Y-%m-%d %H:%M:%S %Z")
