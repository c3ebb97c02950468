"""A warning if a classifier is no better than always answering one class."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from lingvo_pipe.nested_map import NestedMap

_MIN_STEP, _MIN_EXAMPLES = 100, 20  # Earlier, or on fewer, chance is no bad sign.
_ADVICE = (
    "Try a smaller or a larger task.train.learning_rate, batch norm after each "
    "convolution, or inputs scaled to mean 0 and variance 1."
)


class ClassWeights:
    """The total weight of an evaluation's examples, for each class."""

    def __init__(self) -> None:
        self._weights: dict[int, float] = defaultdict(float)

    def add(self, batch: NestedMap) -> None:
        """Adds B examples' weights, if `batch` has `label` and `weight`, `[B]`."""
        both: list[Any] = [batch.get("label"), batch.get("weight")]
        if all(tf.is_tensor(x) and x.shape.rank == 1 for x in both):
            labels, weights = (x.numpy().tolist() for x in both)
            for label, weight in zip(labels, weights, strict=False):
                self._weights[label] += weight

    def warning(self, step: int, metrics: Mapping[str, float]) -> str:
        """Returns a warning if an accuracy is still no better than chance, else ""."""
        largest = max(self._weights.values(), default=0.0)
        total = sum(self._weights.values())
        if step < _MIN_STEP or total < _MIN_EXAMPLES or largest == total:
            return ""
        for name, accuracy in metrics.items():
            is_accuracy = name == "acc" or name.endswith("accuracy")
            if is_accuracy and accuracy * total < largest + 0.5:
                return (
                    f"warning: {name} {accuracy:.4f} is chance: always answering "
                    f"the most frequent class gives {largest / total:.4f}. {_ADVICE}"
                )
        return ""
