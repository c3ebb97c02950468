"""Cutting a mini-batch into micro-batches, and putting it together again.

    B = 10 examples, M = 4:   0 1 2 | 3 4 5 | 6 7 * | 8 9 *        b = 3

Where M does not divide B, the last micro-batches are filled up with copies (*) of their
last example. Copies have no share in the loss, gradients or statistics.

Shapes: B examples in the mini-batch, M micro-batches, b = ceil(B / M) rows in each.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from lingvo_pipe import tree
from lingvo_pipe.layers.forward_context import row_dim
from lingvo_pipe.optional_nest import map_present, present
from lingvo_pipe.pipeline.tracing.named_errors import specs_text


def as_tensors(batch: Any, where: str) -> Any:
    """The batch with everything but None as a tensor.

    Args:
        batch: a structure of tensors, of what can be converted to them, and None.
        where: the layer's path, for errors.

    Raises:
        ValueError: if there is something that is no dense tensor.
    """

    def as_tensor(x: Any) -> tf.Tensor | None:
        if x is None:
            return None
        try:
            return tf.convert_to_tensor(x)
        except (TypeError, ValueError) as error:
            raise ValueError(
                "Inputs and targets of a pipeline must be dense tensors; "
                f"{where} was given a {type(x).__name__}. Pad it, or hand over its "
                "parts that have a row for each example."
            ) from error

    return tf.nest.map_structure(as_tensor, batch)


@dataclasses.dataclass(frozen=True)
class MicroBatches:
    """How a mini-batch is cut.

    Attributes:
        batch_size: B.
        num_micro_batches: M.
        batch_dim: the dimension of the examples; the last, in tensors with fewer.
    """

    batch_size: int
    num_micro_batches: int
    batch_dim: int = 0

    @property
    def num_rows(self) -> int:
        """Rows of a micro-batch, b."""
        return -(-self.batch_size // self.num_micro_batches)

    @property
    def is_ragged(self) -> bool:
        """Whether some micro-batches are filled up."""
        return self.batch_size % self.num_micro_batches != 0

    @property
    def num_examples(self) -> np.ndarray:
        """How many rows of each micro-batch are examples, `[M]` int32."""
        least, more = divmod(self.batch_size, self.num_micro_batches)
        sizes = [least + (m < more) for m in range(self.num_micro_batches)]
        return np.array(sizes, np.int32)

    @property
    def first_examples(self) -> np.ndarray:
        """The place of each micro-batch's first example, `[M]` int64."""
        return np.cumsum([0, *self.num_examples[:-1]], dtype=np.int64)

    def split(self, tensors: Any) -> Any:
        """`[.. B ..]` -> `[M, .. b ..]` for every tensor; None stays."""
        return map_present(self._split, tensors)

    def merge(self, tensors: Any, where: str) -> Any:
        """`[M, .. b ..]` -> `[.. B ..]` for every tensor; None stays.

        Args:
            tensors: the outputs of the last cell.
            where: the pipeline's path, for errors.

        Raises:
            ValueError: if there are tensors of other than b rows.
        """
        wrong = [
            f"{path} {x.shape[1:]}".strip()
            for path, x in tree.leaves(tensors)
            if x is not None and not self._has_rows(x.shape[1:])
        ]
        if wrong:
            raise ValueError(
                "The last cell's outputs must have a row for each example in dimension "
                f"{self.batch_dim}, to be put together from micro-batches; of "
                f"{self.num_rows} rows that of {where} made {', '.join(wrong)}. Return "
                "what has such rows, or compute the rest in the loss."
            )
        return map_present(self._merge, tensors)

    def merge_gradients(self, gradients: Any) -> Any:
        """`[M, .. b ..]` -> `[.. B ..]`; the rows that are no examples have none."""
        return map_present(self._merge, gradients)

    def _has_rows(self, shape: tf.TensorShape) -> bool:
        rank = shape.rank
        return rank > 0 and shape[row_dim(rank, self.batch_dim)] == self.num_rows

    def _split(self, x: tf.Tensor) -> tf.Tensor:
        dim = row_dim(x.shape.rank, self.batch_dim)
        shape = x.shape.as_list()
        if self.is_ragged:
            x = tf.gather(x, self._row_examples(), axis=dim)
        cut = [self.num_micro_batches, self.num_rows]
        x = tf.reshape(x, [*shape[:dim], *cut, *shape[dim + 1 :]])
        return _move(x, dim, 0)

    def _merge(self, x: tf.Tensor) -> tf.Tensor:
        x = tf.ensure_shape(x, [self.num_micro_batches, *x.shape[1:]])
        dim = row_dim(x.shape.rank - 1, self.batch_dim)
        shape = x.shape.as_list()[1:]
        x = _move(x, 0, dim)
        num_rows = self.num_micro_batches * self.num_rows
        x = tf.reshape(x, [*shape[:dim], num_rows, *shape[dim + 1 :]])
        if self.is_ragged:
            x = tf.gather(x, self._example_rows(), axis=dim)
        return x

    def _row_examples(self) -> list[int]:
        """For each row of all micro-batches, the example that stands there."""
        return [
            first + min(row, size - 1)
            for first, size in zip(self.first_examples, self.num_examples, strict=True)
            for row in range(self.num_rows)
        ]

    def _example_rows(self) -> list[int]:
        """For each example its row, among those of all micro-batches."""
        return [
            m * self.num_rows + row
            for m, size in enumerate(self.num_examples)
            for row in range(size)
        ]


def cut_batch(
    tensors: Any,
    num_micro_batches: int,
    wanted_rows: int | None,
    batch_dim: int,
    where: str,
) -> MicroBatches:
    """How a mini-batch is to be cut, after checking that it can be.

    Args:
        tensors: a structure of tensors and None.
        num_micro_batches: M.
        wanted_rows: b as the user states it, or None.
        batch_dim: the dimension of the examples.
        where: the layer's path, for errors.

    Raises:
        ValueError: if no tensor has a dimension `batch_dim`, B is not the same
            everywhere, it or another size is unknown, there are fewer examples than
            micro-batches, or `wanted_rows` is not b.
    """
    found = present(tensors)
    _check_batch_dim(tensors, batch_dim, where)
    sizes = {
        x.shape[row_dim(x.shape.rank, batch_dim)] if x.shape.rank else None
        for x in found
    }
    batch_size = sizes.pop() if len(sizes) == 1 else None
    if batch_size is None:
        raise ValueError(
            "Inputs and targets of a pipeline must have the same, known number of "
            f"examples in dimension {batch_dim}; {where} was given "
            f"{specs_text(tensors) or 'none'}. Batch with drop_remainder=True, or set "
            "the static shape."
        )
    if not all(x.shape.is_fully_defined() for x in found):
        raise ValueError(
            "Inputs and targets of a pipeline must have static shapes, in all their "
            f"dimensions; {where} was given {specs_text(tensors)}. Pad to a static "
            "shape, or state it by tf.ensure_shape."
        )
    if batch_size < num_micro_batches:
        raise ValueError(
            "Each micro-batch needs an example at least; "
            f"{where} was given {batch_size} examples for {num_micro_batches} "
            "micro-batches. Change the input's batch_size or num_micro_batches."
        )
    cut = MicroBatches(batch_size, num_micro_batches, batch_dim)
    if wanted_rows is not None and wanted_rows != cut.num_rows:
        raise ValueError(
            "micro_batch_size must be the mini-batch over num_micro_batches, rounded "
            f"up; {where} has {wanted_rows} and {num_micro_batches}, and was given "
            f"{batch_size} examples. Leave micro_batch_size None, or change one of the "
            "three."
        )
    return cut


def _check_batch_dim(tensors: Any, batch_dim: int, where: str) -> None:
    """Raises ValueError if all tensors have fewer dimensions than it says."""
    ranks = [x.shape.rank for x in present(tensors)]
    if ranks and all(rank and rank <= batch_dim for rank in ranks):
        raise ValueError(
            "batch_dim must be a dimension of some input or target; that of "
            f"{where} is {batch_dim}, and it was given {specs_text(tensors)}. Set it "
            "to the dimension of the examples, counted from 0."
        )


def _move(x: tf.Tensor, source: int, target: int) -> tf.Tensor:
    """`x` with one of its dimensions moved to another place."""
    if source == target:
        return x
    order = [i for i in range(x.shape.rank) if i != source]
    order.insert(target, source)
    return tf.transpose(x, order)
