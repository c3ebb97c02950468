"""One page about a run: `LOGDIR/report.html`, for any browser, without a network.

The template, `report.html.jinja`, escapes all texts.
"""

import base64
import datetime
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from lingvo_pipe.core.atomic_file import write_atomically
from lingvo_pipe.core.error_text import error_text
from lingvo_pipe.core.regular_file import MALFORMED, damaged, locked_folder
from lingvo_pipe.training.report import run_record
from lingvo_pipe.training.report.curves import COLORS, make_figure
from lingvo_pipe.training.report.series import Series, number_text
from lingvo_pipe.training.run.best_evaluation import SPLIT, read_best
from lingvo_pipe.training.run.metrics_log import read_metrics
from lingvo_pipe.training.run.run_directory import RunDirectory
from lingvo_pipe.training.run.run_parts import disturbances, read_parts
from lingvo_pipe.training.stability.skipped_batches import SkippedBatches


def write_report(directory: RunDirectory) -> Path:
    """Writes the page about a run, and returns the page's path.

    Raises:
        ValueError: if a file is damaged.
    """
    with locked_folder(directory.path):  # Several processes may write the page.
        page = _template().render(_values(directory))
        write_atomically(directory.report_path, page)
    return directory.report_path


def report_end(directory: RunDirectory, log: Callable[[str], None]) -> None:
    """Writes the page about a run. Logs an error, since the job itself is complete."""
    try:
        write_report(directory)
    except Exception as error:
        log(
            f"The report could not be written: {error_text(error)}\n"
            f"--mode=report --logdir={directory.path} writes it again."
        )


@functools.cache
def _template() -> Any:
    # Imported here: few of the trainer's jobs write a page.
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["base64"] = lambda data: base64.b64encode(data).decode()
    environment.filters["thousands"] = "{:,}".format
    return environment.get_template("report.html.jinja")


def _values(directory: RunDirectory) -> dict[str, Any]:
    params = directory.read_params() or ""
    records = read_metrics(directory.path)
    series = run_record.read_series(directory, records)
    best = read_best(directory.best_path)
    sizes = run_record.checkpoint_sizes(directory)
    all_series = list(itertools.chain(*series.values()))
    splits = dict.fromkeys(curve.split for curve in all_series)
    colors = dict(zip(splits, itertools.cycle(COLORS)))
    # The evaler's metrics may be of a run that this one has replaced.
    last_step = max([0, *sizes, *(record["step"] for record in records)])
    num_skipped = SkippedBatches(directory.skipped_batches_path).total
    best_metric = directory.best_metric()
    parts = read_parts(directory.parts_path)
    figures = [make_figure(curves, colors) for curves in series.values()]
    for figure in figures:
        if figure.metric == "loss" and parts and parts[-1].train_loss:
            figure.notes.append(parts[-1].train_loss)
    return {
        "model_name": directory.model_name,
        "facts": [
            *_facts(directory.last_step(), last_step, num_skipped, best),
            *(("Param changed", change) for change in directory.read_changes()),
            *(
                (f"Steps {part.after_step + 1:,} to {part.last_step:,}", part.text())
                for part in parts
            ),
            *(("Disturbed", line) for line in disturbances(parts)),
        ],
        "metrics": [_metric_row(curve, best_metric) for curve in all_series],
        "figures": figures,
        "images": run_record.last_images(
            directory.path / SPLIT,
            max(
                (x.last.step for x in all_series if x.split == SPLIT), default=math.inf
            ),
        ),
        "translations": list(map(_translations, run_record.read_scores(directory))),
        "profiles": sorted(run_record.read_profiles(directory).items(), reverse=True),
        "checkpoints": [
            (
                f"{'the best, ' if step == best.get('step') else ''}{step:,}",
                f"{size / 2**20:,.1f} MiB",
            )
            for step, size in sizes.items()
        ],
        "params": params.rstrip("\n"),
        "versions": run_record.software_versions(),
    }


def _facts(
    max_steps: int | None, last_step: int, num_skipped: int, best: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    of = f" of {max_steps:,}" if max_steps else ""
    yield "Trained", f"{last_step:,}{of} steps"
    if num_skipped:
        yield "Skipped", f"{num_skipped:,} batches, for spikes of the loss"
    if best:
        best_values = [
            f"{k} {number_text(float(v))}" for k, v in best.items() if k != "step"
        ]
        yield "Best evaluation", f"step {best['step']:,}: {', '.join(best_values)}"
    now = datetime.datetime.now().astimezone()
    yield "Report written", now.strftime("%Y-%m-%d %H:%M:%S %Z")


def _metric_row(series: Series, best_metric: str | None) -> list[str]:
    row = [series.metric, series.split]
    for report in (series.last, series.best(best_metric)):
        row += [number_text(report.value), f"{report.step:,}"] if report else ["", ""]
    return row


def _translations(scores: run_record.Scores) -> dict[str, Any]:
    document = scores.document
    try:
        languages = document["languages"]
        total = sum(pair["num_sentences"] for pair in languages)
        rows = [(pair["languages"], pair["num_sentences"], pair) for pair in languages]
        rows.append(("mean", total, document["mean"]))
        if "source_copied" in document:
            copied = document["source_copied"]
            rows.append(("mean if the source is copied", total, copied))
        return {
            "split": scores.split,
            "step": f"{document['step']:,}",
            "png": scores.png,
            "rows": [
                [name, f"{number:,}", f"{values['bleu']:.2f}", f"{values['chrf']:.2f}"]
                for name, number, values in rows
            ],
            "samples": scores.samples,
        }
    except MALFORMED as error:
        expected = "the scores that the decoder wrote"
        raise damaged(scores.path, expected, document) from error
