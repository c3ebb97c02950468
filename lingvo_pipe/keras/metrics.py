"""Compiled Keras metrics over micro-batches, exact.

adds up           its state is a sum over examples: each micro-batch's sum is made
                  on the last stage's device, and their total added afterwards
does not add up   updated once, by the mini-batch's outputs
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from lingvo_pipe.keras.private_names import compiled_metrics

# States that are no sums although they are Keras's own.
_NO_SUMS = tuple(
    getattr(keras.metrics, name)
    for name in ("PearsonCorrelation", "ConcordanceCorrelation")
    if hasattr(keras.metrics, name)
)


def adds_up(metric: keras.Metric) -> bool:
    """Returns True if a metric's state is a sum over examples."""
    own = type(metric).__module__.startswith("keras.")
    return own and not isinstance(metric, _NO_SUMS)


def all_add_up(compiled: Any) -> bool:
    """Returns True if all metrics of a compilation do."""
    return all(map(adds_up, compiled_metrics(compiled)))


def shares(
    metrics: Any, variables: Sequence[keras.Variable], *args: Any
) -> list[tf.Tensor]:
    """Returns what a micro-batch adds to the metrics' variables.

    Args:
        metrics: an object with `update_state`.
        variables: its variables.
        *args: arguments of `update_state`.
    """
    zeros = [(v, tf.zeros(v.shape, v.dtype)) for v in variables]
    with keras.StatelessScope(zeros) as scope:
        metrics.update_state(*args)
    return [scope.get_current_value(v) for v in variables]
