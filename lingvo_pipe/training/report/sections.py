"""The parts of the page of a run. Pure: what they show is given."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lingvo_pipe.training.report.axis import number_text
from lingvo_pipe.training.report.curves import draw_curves
from lingvo_pipe.training.report.elements import (
    Html,
    element,
    joined,
    picture,
    section,
    table,
)
from lingvo_pipe.training.report.series import Series
from lingvo_pipe.training.report.style import NUM_COLORS

SeriesByMetric = Mapping[str, Sequence[Series]]


def facts(pairs: Iterable[tuple[str, str]]) -> Html:
    """What there is to know of a run, each under its name."""
    parts = []
    for name, value in pairs:
        parts += [element("dt", name), element("dd", value)]
    return element("dl", *parts)


def metrics_section(metrics: SeriesByMetric, best_metric: str | None) -> Html:
    """The last and the best value of each metric on each split.

    Args:
        metrics: by name.
        best_metric: see `Series.best`.
    """
    if not metrics:
        return section("Metrics", element("p", "Nothing is reported yet."))
    rows = []
    for each in (each for series in metrics.values() for each in series):
        best = each.best(best_metric)
        of_best = ["", ""]
        if best is not None:
            of_best = [number_text(best.value), f"{best.step:,}"]
        last = [number_text(each.last.value), f"{each.last.step:,}"]
        rows.append([each.metric, each.split, *last, *of_best])
    head = ["metric", "of", "last", "step", "best", "step"]
    return section("Metrics", table(head, rows, num_texts=2))


def curves_section(metrics: SeriesByMetric) -> Html:
    """A picture of each metric."""
    splits = dict.fromkeys(each.split for series in metrics.values() for each in series)
    colors = {split: place % NUM_COLORS for place, split in enumerate(splits)}
    figures = [draw_curves(series, colors) for series in metrics.values()]
    return section("Curves", element("div", *figures, class_="curves"))


def pictures_section(title: str, pictures: Mapping[str, bytes]) -> Html:
    """PNGs by what they show."""
    figures = [
        element("figure", element("figcaption", name), picture(png, name))
        for name, png in pictures.items()
    ]
    return section(title, element("div", *figures, class_="pictures"))


def profile_section(profiles: Mapping[int, tuple[bytes, str]]) -> Html:
    """Where the time of steps went, the last one first.

    Args:
        profiles: by step, picture and text; see `StepProfile`.
    """
    parts = [
        element(
            "details",
            element("summary", f"Step {step:,}"),
            _profile(step, *profiles[step]),
            open="" if step == max(profiles) else None,
        )
        for step in sorted(profiles, reverse=True)
    ]
    return section("Where a step's time goes", *parts)


def _profile(step: int, png: bytes, text: str) -> Html:
    title_and_notes, _, compared = text.partition("\n\n")
    _, *notes = title_and_notes.splitlines()
    shows = f"What each device ran when in step {step}, predicted and measured"
    return joined(
        [
            element("figure", picture(png, shows)),
            *([_compared(compared)] if compared else []),
            *(element("p", note) for note in notes),
        ]
    )


def _compared(text: str) -> Html:
    """The table that `compare` makes, in which at least two blanks are a border."""
    head, *lines = (line.strip() for line in text.splitlines() if line)
    rows = []
    for name, *numbers in (re.split(r"\s{2,}", line) for line in lines):
        first = name if numbers else element("strong", name)
        rows.append([first, *numbers, *[""] * (3 - len(numbers))])
    return table(["", *head.split()], rows, num_texts=1)


def scores_section(split: str, document: Mapping[str, Any], png: bytes | None) -> Html:
    """What a decoding run reached.

    Args:
        split: what was translated.
        document: the scores; see `decoder_report`.
        png: the same as a picture, if there is one.
    """
    rows = [
        [each["languages"], f"{each['num_sentences']:,}", *_scores(each)]
        for each in document["languages"]
    ]
    total = sum(each["num_sentences"] for each in document["languages"])
    rows.append(["mean", f"{total:,}", *_scores(document["mean"])])
    head = ["languages", "sentences", "BLEU", "chrF"]
    title = f"Translations of {split} after step {document['step']:,}"
    parts = [table(head, rows, num_texts=1)]
    if png is not None:
        parts.append(element("figure", picture(png, "BLEU and chrF by languages")))
    return section(title, *parts)


def checkpoints_section(sizes: Mapping[int, int], best_step: int | None) -> Html:
    """The checkpoints that are kept.

    Args:
        sizes: bytes of each, by its step.
        best_step: that of the best evaluation, if one is looked for.
    """
    if not sizes:
        return section("Checkpoints", element("p", "None is saved yet."))
    rows = []
    for step, size in sizes.items():
        mark = "the best, " if step == best_step else ""
        rows.append([f"{mark}{step:,}", f"{size / 2**20:,.1f} MiB"])
    return section("Checkpoints", table(["step", "size"], rows, num_texts=0))


def params_section(text: str) -> Html:
    """All params, which the browser's search finds."""
    lines = text.rstrip("\n")
    return section(
        "Params",
        element(
            "details",
            element("summary", f"All {len(lines.splitlines())} lines of params.txt"),
            element("pre", lines, class_="wrapped"),
        ),
    )


def versions_section(versions: Mapping[str, str]) -> Html:
    """Of the software that wrote the page."""
    rows = versions.items()
    return section("Versions", table(["software", "version"], rows, num_texts=2))


def _scores(scores: Mapping[str, float]) -> list[str]:
    return [f"{scores[name]:.2f}" for name in ("bleu", "chrf")]
