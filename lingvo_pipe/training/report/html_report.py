"""One page about a run: `LOGDIR/report.html`, for any browser, without a network.

It shows the run directory's contents: metrics as a table and curves, images of the
last evaluation, translations, profiles, checkpoints, params; and the versions of the
software that wrote it. The template is `report.html.jinja`, which escapes all texts.
"""

from __future__ import annotations

import base64
import datetime
import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from lingvo_pipe.core.atomic_file import write_atomically
from lingvo_pipe.core.error_text import error_text
from lingvo_pipe.training.report import run_record
from lingvo_pipe.training.report.axis import number_text
from lingvo_pipe.training.report.curves import Figure, make_figure
from lingvo_pipe.training.report.series import Series
from lingvo_pipe.training.run.best_evaluation import SPLIT
from lingvo_pipe.training.run.run_directory import RunDirectory

_TEMPLATE = "report.html.jinja"
_NUM_COLORS = 6  # The template's style has this many.

SeriesByMetric = Mapping[str, Sequence[Series]]


def write_report(directory: RunDirectory) -> Path:
    """Writes the page, replacing an earlier one.

    Args:
        directory: directory of a run that has started.

    Returns:
        The page's path.

    Raises:
        ValueError: if a file of the run is damaged.
    """
    page = _environment().get_template(_TEMPLATE).render(_values(directory))
    write_atomically(directory.report_path, page)
    return directory.report_path


def report_end(directory: RunDirectory, log: Callable[[str], None]) -> None:
    """Writes the page when a run has ended; logs errors instead of raising them.

    The run itself is complete, so a scheduler must not restart it.

    Args:
        directory: the run's directory.
        log: callback for a line of text for the user.
    """
    try:
        write_report(directory)
    except Exception as error:
        log(
            f"The run is complete except for its report: {error_text(error)}\n"
            f"--mode=report --logdir={directory.path} writes it again."
        )


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["base64"] = lambda data: base64.b64encode(data).decode()
    environment.filters["coordinate"] = "{:.1f}".format
    return environment


def _values(directory: RunDirectory) -> dict[str, Any]:
    """Returns the template's values by name."""
    params = directory.read_params() or ""
    series = run_record.read_series(directory)
    best = run_record.read_best(directory)
    sizes = run_record.checkpoint_sizes(directory)
    last_step = max([0, *sizes, *(s.last.step for m in series.values() for s in m)])
    num_skipped = run_record.num_skipped_batches(directory)
    best_metric = run_record.param_value(params, "task.eval.best_metric")
    images = run_record.last_images(directory.path / SPLIT)
    return {
        "model_name": directory.model_name,
        "facts": list(_facts(params, last_step, num_skipped, best)),
        "metrics": list(_metric_rows(series, best_metric)),
        "figures": _figures(series),
        "images": {f"{k}, step {x.step:,}": x.png for k, x in images.items()},
        "translations": list(map(_translations, run_record.read_scores(directory))),
        "profiles": [
            _profile(step, png, text)
            for step, (png, text) in sorted(
                run_record.read_profiles(directory).items(), reverse=True
            )
        ],
        "checkpoints": [
            [
                f"the best, {step:,}" if step == best.get("step") else f"{step:,}",
                f"{size / 2**20:,.1f} MiB",
            ]
            for step, size in sizes.items()
        ],
        "params": params.rstrip("\n"),
        "versions": run_record.software_versions(),
    }


def _facts(
    params: str, last_step: int, num_skipped: int, best: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """Yields names and values for the head of the page."""
    max_steps = run_record.param_value(params, "task.train.max_steps")
    of = f" of {max_steps:,}" if max_steps else ""
    yield "Trained", f"{last_step:,}{of} steps"
    if num_skipped:
        yield "Skipped", f"{num_skipped:,} batches, for spikes of the loss"
    if best:
        found = [f"{k} {number_text(float(v))}" for k, v in best.items() if k != "step"]
        yield "Best evaluation", f"step {best['step']:,}: {', '.join(found)}"
    now = datetime.datetime.now().astimezone()
    yield "Report written", now.strftime("%Y-%m-%d %H:%M:%S %Z")


def _metric_rows(
    metrics: SeriesByMetric, best_metric: str | None
) -> Iterator[list[str]]:
    """Yields the last and the best value of each metric on each split."""
    for each in (each for series in metrics.values() for each in series):
        numbers = [each.last, each.best(best_metric)]
        cells = [
            ["", ""] if x is None else [number_text(x.value), f"{x.step:,}"]
            for x in numbers
        ]
        yield [each.metric, each.split, *cells[0], *cells[1]]


def _figures(metrics: SeriesByMetric) -> list[Figure]:
    splits = dict.fromkeys(each.split for series in metrics.values() for each in series)
    colors = {split: i % _NUM_COLORS for i, split in enumerate(splits)}
    return [make_figure(series, colors) for series in metrics.values()]


def _translations(scores: run_record.Scores) -> dict[str, Any]:
    languages, mean = scores.document["languages"], scores.document["mean"]
    total = sum(each["num_sentences"] for each in languages)
    rows = [(each["languages"], each["num_sentences"], each) for each in languages]
    return {
        "split": scores.split,
        "step": f"{scores.document['step']:,}",
        "png": scores.png,
        "rows": [
            [name, f"{number:,}", f"{each['bleu']:.2f}", f"{each['chrf']:.2f}"]
            for name, number, each in [*rows, ("mean", total, mean)]
        ],
    }


def _profile(step: int, png: bytes, text: str) -> dict[str, Any]:
    """Parses the text of a `StepProfile`: title, notes, blank line, table."""
    title_and_notes, _, table = text.partition("\n\n")
    # At least two blanks separate the table's columns.
    head, *rows = [
        re.split(r"\s{2,}", line.strip()) for line in table.splitlines() if line
    ] or [[]]
    return {
        "step": f"{step:,}",
        "png": png,
        "notes": title_and_notes.splitlines()[1:],
        "head": ["", *" ".join(head).split()],
        "rows": [row + [""] * (4 - len(row)) if row[1:] else row for row in rows],
    }
