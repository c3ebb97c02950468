"""The guide's sections on larger Keras models, from the results of their training.

`results.jsonl` holds the lines that `trained_models` prints.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tools.keras_models.hub_models import HUB_MODELS

RESULTS = Path(__file__).parent / "results.jsonl"
_WIDTH = 92
_APPLICATIONS = """\
## Keras Applications

Each model of `keras.applications` with the smallest images that it takes, 8 in a
mini-batch, beside plain Keras. At M = 4 the bytes are the same on one and two devices.
The factors are CPU seconds, as a multiple of plain Keras's: of the first step, in which
everything is built, and of a step. Of such small images, 2 in a micro-batch, most time
goes into weights and single operations, not into pixels; at M = 4 a step does that four
times, and recomputes the forward pass.

| Model | M = 1 | M = 4 | First step, M = 1 | M = 4 | Step, M = 1 | M = 4 |
|---|---|---|---|---|---|---|
"""
_HUB = """\
## KerasHub

A small model of each of KerasHub's families, with all weights trained, and with LoRA.
"""
_OUTCOMES = {"same": "Same", "warned": "Same at M = 1, and warned at M = 4"}


class Result(NamedTuple):
    """A comparison of training by pipelines and by plain Keras.

    Attributes:
        name: the model.
        outcome: same; warned, if layers that mix examples are named at several
            micro-batches; differs; or the text of a refusal.
        first_step: CPU seconds of the first step by layout, building included.
        step: CPU seconds of a step by layout.
    """

    name: str
    outcome: str
    first_step: dict[str, float]
    step: dict[str, float]


def read_results() -> list[Result]:
    """Returns all results, by name."""
    lines = RESULTS.read_text(encoding="utf-8").splitlines()
    return sorted(Result(**json.loads(line)) for line in lines)


def sections() -> str:
    """Returns the sections' text."""
    results = read_results()
    hub = [x for x in results if x.name.removesuffix(" LoRA") in HUB_MODELS]
    rows = [_row(result) for result in results if result not in hub]
    paragraphs = [_paragraph(outcome, hub) for outcome in _OUTCOMES]
    return f"{_APPLICATIONS}{''.join(rows)}\n{_HUB}\n" + "\n".join(paragraphs)


def _row(result: Result) -> str:
    factors = [
        f"{seconds[layout] / seconds['plain']:.1f}"
        for seconds in (result.first_step, result.step)
        for layout in ("M=1", "M=4")
    ]
    outcomes = ["same", result.outcome]
    return f"| `{result.name}` | {' | '.join([*outcomes, *factors])} |\n"


def _paragraph(outcome: str, results: Sequence[Result]) -> str:
    names = ", ".join(x.name for x in results if x.outcome == outcome)
    text = f"**{_OUTCOMES[outcome]}:** {names}."
    return textwrap.fill(text, _WIDTH, break_on_hyphens=False) + "\n"
