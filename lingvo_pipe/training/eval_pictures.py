"""What a task may offer to be seen of an evaluation, beside its metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from lingvo_pipe.nested_map import NestedMap


class EvalPictures(Protocol):
    """Pictures of one evaluation, which are drawn when it is over.

    It is shown each batch, and must keep no more than a few of them.
    """

    def Add(self, input_batch: NestedMap, predictions: Any) -> None:
        """Looks at a batch.

        Args:
            input_batch: the batch.
            predictions: the last layer's outputs for it, `[B, ...]`.
        """

    def Draw(self) -> Mapping[str, bytes]:
        """PNGs by their names; the same bytes for the same batches."""
