"""One operation of a device's loop: what it is told, and what it leaves."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from lingvo_pipe.nested_map import NestedMap


class Row(NamedTuple):
    """An operation as data: `[]` int32 each."""

    micro_batch: tf.Tensor
    read_slot: tf.Tensor
    write_slot: tf.Tensor

    def of_micro_batch(self, x: tf.Tensor | None) -> tf.Tensor | None:
        """Its part of what is `[M]`, or None; or `[]` and the same for all."""
        return x[self.micro_batch] if x is not None and x.shape.rank else x


class Outcome(NamedTuple):
    """What an operation leaves.

    Attributes:
        state: the new state.
        sent: operations that must have run.
        started: [] float64, the time at which its messages were there.
        ended: likewise, at which it was done; None: when the state is there, and all is
            sent.
    """

    state: NestedMap
    sent: list[tf.Operation]
    started: tf.Tensor
    ended: tf.Tensor | None = None
