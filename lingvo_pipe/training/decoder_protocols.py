"""What decoding asks of a task and of an input, none of which needs a base class.

Shapes: B examples in a batch, N sequences for each, T tokens at most.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import tensorflow as tf

from lingvo_pipe.nested_map import NestedMap


class Sequences(Protocol):
    """What is decoded, the best of each example first; empty ones at the end."""

    @property
    def ids(self) -> tf.Tensor:
        """`[B, N, T]` int32, each sequence with its end token."""

    @property
    def lengths(self) -> tf.Tensor:
        """`[B, N]` int32; 0 for a sequence that is empty."""

    @property
    def scores(self) -> tf.Tensor:
        """`[B, N]`, descending."""


@runtime_checkable
class DecodingTask(Protocol):
    """A task that makes sequences."""

    def Decode(
        self,
        theta: NestedMap,
        input_batch: NestedMap,
        first_ids: tf.Tensor,
        eos_id: int,
    ) -> Sequences:
        """Returns sequences for a batch; a function of the arguments alone.

        Args:
            theta: values in the structure of the task's `vars`.
            input_batch: of the input's `DecodeBatches`.
            first_ids: `[B]` int32, what is read before the first token.
            eos_id: the end token.
        """


class Vocabulary(Protocol):
    """From tokens to texts."""

    @property
    def bos_id(self) -> int:
        """The token that a sequence begins after."""

    @property
    def eos_id(self) -> int:
        """The token that ends a sequence."""

    def Detokenize(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns the text of each row up to the end token: int32 [K, T] -> [K]."""


@runtime_checkable
class DecodeInput(Protocol):
    """An input of what is to be translated."""

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary."""

    def DecodeBatches(self) -> tf.data.Dataset:
        """Returns batches that hold each sentence once, in the same order each time.

        The order is free: sentences of one length, side by side, are soonest done. A
        batch is a NestedMap of static shapes, with what the task reads and

        - source_text, target_text: string [B], the sentence and its translation;
        - source_language, target_language: string [B];
        - place: int64 [B], by which translations are put in the data's order;
        - weight: float32 [B], 1 for a sentence, and 0 for padding.
        """
