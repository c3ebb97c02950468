"""Makes the guide's sections on larger Keras models, from results in a file.

The file `results.jsonl` holds the lines that `trained_models` prints.
"""

from __future__ import annotations

import json
import textwrap
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from tools.keras_models.examples import HUB_MODELS

RESULTS = Path(__file__).parent / "results.jsonl"
_WIDTH = 92
_APPLICATIONS = """\
## Keras Applications

Each model of `keras.applications` with the smallest images that it takes, 8 in a
mini-batch, beside plain Keras. At M = 4 the bytes are the same on one and two devices
after three steps. M = 1 is compared with plain Keras after one step: further steps
enlarge the rounding of deep batch norms, and plain `InceptionV3` differs from itself by
as much if its inputs change in the seventh digit.

The factors are CPU seconds, as a multiple of plain Keras's: of the first step, in which
everything is built, and of a step. Other programs ran at the same time, so a factor may
be off by a fifth. `VGG16` and `VGG19` are built in two seconds, of which the fixed part
of a pipeline is a large share. Of such small images, 2 in a micro-batch, most time goes
into weights and single operations, not into pixels; at M = 4 a step does that four
times, and recomputes the forward pass.

The results here and for KerasHub are of November 2026, by Keras 3.15.1 and
TensorFlow 2.21.0 on a processor that was not noted, and no test repeats them. In the
repository, `python -m tools.keras_models.trained_models ResNet50 BERT` does, for models
of these names.

| Model | M = 1 | M = 4 | First step, M = 1 | M = 4 | Step, M = 1 | M = 4 |
|---|---|---|---|---|---|---|
"""
_HUB = """\
## KerasHub

Small models of these families of KerasHub, with all weights trained, and with LoRA.
"""
_HEADINGS = {
    "same": "Same",
    "warned": "Same at M = 1, and warned at M = 4",
    "differs": "Differs",
}


class Result(NamedTuple):
    """A comparison of training by pipelines and by plain Keras.

    A layout is plain Keras, or a pipeline with numbers of micro-batches and devices.

    Attributes:
        outcome: "same", "differs", the text of a refusal, or "warned" if a warning
            names layers that mix examples.
        first_step: CPU seconds of the first step by layout, with building the model.
        step: CPU seconds of a later step by layout.
    """

    name: str
    outcome: str
    first_step: dict[str, float]
    step: dict[str, float]


def read_results() -> list[Result]:
    """Returns all results, sorted by name."""
    lines = RESULTS.read_text(encoding="utf-8").splitlines()
    return sorted(Result(**json.loads(line)) for line in lines)


def sections(results: list[Result]) -> str:
    """Returns the text of the guide's sections, with the model of each result."""
    rows, names = [], defaultdict(list)
    for result in results:
        heading = _HEADINGS.get(result.outcome, "Refused")
        if result.name.removesuffix(" LoRA") not in HUB_MODELS:
            rows.append(_row(result, heading.lower()))
        elif heading == "Refused":
            names[heading].append(f"{result.name} ({result.outcome.rstrip('.')})")
        else:
            names[heading].append(result.name)
    paragraphs = [
        textwrap.fill(
            f"**{heading}:** {', '.join(names[heading])}.",
            _WIDTH,
            break_on_hyphens=False,
        )
        for heading in (*_HEADINGS.values(), "Refused")
        if heading in names
    ]
    return f"{_APPLICATIONS}{''.join(rows)}\n{_HUB}\n" + "\n\n".join(paragraphs) + "\n"


def _row(result: Result, outcome: str) -> str:
    outcomes = ["same", "warned"] if result.outcome == "warned" else [outcome] * 2
    factors = [
        f"{seconds[layout] / seconds['plain']:.1f}" if layout in seconds else ""
        for seconds in (result.first_step, result.step)
        for layout in ("M=1", "M=4")
    ]
    return f"| `{result.name}` | {' | '.join([*outcomes, *factors])} |\n"
