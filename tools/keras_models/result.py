"""The result of training a Keras model by pipelines, beside plain Keras."""

from __future__ import annotations

from typing import NamedTuple


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
