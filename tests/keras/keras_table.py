"""Table of everything of Keras, for the guide.

    python -m tests.keras.keras_table

writes it to docs/keras_table.md.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from pathlib import Path

from tests.keras.every_layer_test import REFUSED, layer_names
from tests.keras.every_setting import KINDS, names
from tools.keras_models import results_table

PAGE = Path(__file__).resolve().parents[2] / "lingvo_pipe/docs/keras_table.md"
_WIDTH = 92
_INTRODUCTION = """\
# What of Keras is the same

Each of these is compared with plain Keras: layers, random ones included, by the outputs
of micro-batches of 2 and 4 rows on one device; all else by a training of four
micro-batches on two devices. Tests of whole models compare one micro-batch, and the
bytes on one device and on more.

- **Same**: the outputs of layers, or weights, slots, metrics and predictions, are plain
  Keras's but for rounding: within 1e-5 for layers, 1e-4 of an array's largest number
  for trainings, and 2% for dtype policies of 16 bits.
- **Warned**: at several micro-batches the results depend on their number, and a warning
  names it.
- **Refused**: an error names it. See [Keras models](keras.md).

Compare a model of your own in a test:

```python
import keras
import lingvo_pipe as lp
import numpy as np

lp.testing.assert_pipelined_equals_plain(
    lambda: keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)]),
    data=(np.ones((16, 4)), np.ones((16, 2))),
    compile_args={"optimizer": "sgd", "loss": "mse"},
    devices=[1],
)
```

It trains by plain Keras and by pipelines, and raises an AssertionError that names the
first weight, slot, metric or prediction that differs.
"""


def table() -> str:
    """Returns the page's text."""
    layers = layer_names()
    by_moments = {"BatchNormalization"}  # Of each micro-batch.
    sections = {
        "layers": {
            "Same": layers - REFUSED - by_moments,
            "Warned": by_moments,
            "Refused": layers & REFUSED,
        },
        **{kind: {"Same": set(names(kind))} for kind in KINDS},
    }
    lines = [_INTRODUCTION]
    for kind, outcomes in sections.items():
        lines.append(f"## {kind.capitalize()}\n")
        lines += [f"{_paragraph(*outcome)}\n" for outcome in outcomes.items()]
    return "\n".join([*lines, results_table.sections(results_table.read_results())])


def _paragraph(outcome: str, members: Iterable[str]) -> str:
    text = f"**{outcome}:** {', '.join(f'`{name}`' for name in sorted(members))}."
    return textwrap.fill(text, _WIDTH, break_on_hyphens=False)


if __name__ == "__main__":
    PAGE.write_text(table(), encoding="utf-8")
