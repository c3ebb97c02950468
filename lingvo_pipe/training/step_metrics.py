"""What each step reports beside the metrics of its task."""

from __future__ import annotations

from collections.abc import Iterable

LEARNING_RATE = "learning_rate"
GRADIENT_NORM = "gradient_norm"


def check_metric_names(names: Iterable[str]) -> None:
    """Raises ValueError if a task's metrics are called as these."""
    if taken := sorted({LEARNING_RATE, GRADIENT_NORM} & set(names)):
        raise ValueError(
            "A task's metrics must not be called as those that each step reports; got "
            f"{' and '.join(map(repr, taken))}. Rename them in ComputeLoss."
        )
