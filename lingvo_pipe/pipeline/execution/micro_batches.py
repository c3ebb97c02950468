"""Cuts a mini-batch into micro-batches, and merges their outputs.

    B = 10 examples, M = 4:   0 1 2 | 3 4 5 | 6 7 * | 8 9 *        b = 3

Where M does not divide B, the last micro-batches get padding rows (*), copies of a
micro-batch's last example. Padding rows do not count in the loss, gradients or
statistics.

Shapes: B examples in the mini-batch, M micro-batches, b = ceil(B / M) rows in each.
"""

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from lingvo_pipe.core import trees
from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.core.nests import map_present, present
from lingvo_pipe.layers.core.forward_context import row_dim
from lingvo_pipe.pipeline.tracing.named_errors import specs_text


def as_tensors(batch: Any, path: str) -> Any:
    """Converts everything in a batch, except None, to dense tensors."""

    def as_tensor(x: Any) -> tf.Tensor | None:
        if x is None:
            return None
        try:
            return tf.convert_to_tensor(x)
        except (TypeError, ValueError) as error:
            raise UserValueError(
                path=path,
                expected="inputs and targets that are dense tensors",
                got=Words(type(x).__name__),
                hint="Pad it, or pass its components, with a row for each example.",
            ) from error

    return tf.nest.map_structure(as_tensor, batch)


@dataclasses.dataclass(frozen=True)
class MicroBatches:
    """A way to cut a mini-batch into micro-batches of equal numbers of rows."""

    batch_size: int  # B.
    num_micro_batches: int  # M.
    # Dimension of the examples. Tensors with fewer dimensions have them in the last.
    batch_dim: int = 0

    @property
    def num_rows(self) -> int:
        """Rows of a micro-batch, b."""
        return -(-self.batch_size // self.num_micro_batches)

    @property
    def is_ragged(self) -> bool:
        """True if some micro-batches have padding rows."""
        return self.batch_size % self.num_micro_batches != 0

    @property
    def num_examples(self) -> np.ndarray:
        """Number of each micro-batch's rows that are examples, `[M]` int32."""
        size, num_larger = divmod(self.batch_size, self.num_micro_batches)
        sizes = [size + (m < num_larger) for m in range(self.num_micro_batches)]
        return np.array(sizes, np.int32)

    @property
    def first_examples(self) -> np.ndarray:
        """Index of each micro-batch's first example, `[M]` int64."""
        return np.cumsum([0, *self.num_examples[:-1]], dtype=np.int64)

    def split(self, tensors: Any) -> Any:
        """Cuts every tensor, `[.. B ..]` -> `[M, .. b ..]`, and keeps None."""
        return map_present(self._split, tensors)

    def merge(self, tensors: Any, path: str) -> Any:
        """Merges every output, `[M, .. b ..]` -> `[.. B ..]`, and keeps None.

        Raises:
            ValueError: if a tensor does not have b rows.
        """
        wrong = [
            f"{name} {x.shape[1:]}".strip()
            for name, x in trees.leaves(tensors)
            if x is not None and not self._has_rows(x.shape[1:])
        ]
        if wrong:
            raise UserValueError(
                path=path,
                expected=f"outputs of the last cell with {self.num_rows} rows in "
                f"dimension {self.batch_dim}",
                got=Words(", ".join(wrong)),
                hint="Outputs without a row for each example belong in the loss.",
            )
        return self.merge_gradients(tensors)

    def merge_gradients(self, gradients: Any) -> Any:
        """Merges gradients: `[M, .. b ..]` -> `[.. B ..]`, without padding rows."""
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
        """Returns the index of the example in each row of all micro-batches."""
        return [
            first + min(row, size - 1)
            for first, size in zip(self.first_examples, self.num_examples, strict=True)
            for row in range(self.num_rows)
        ]

    def _example_rows(self) -> list[int]:
        """Returns the row of each example, among the rows of all micro-batches."""
        return [
            m * self.num_rows + row
            for m, size in enumerate(self.num_examples)
            for row in range(size)
        ]


def check_static(tensors: Any, path: str) -> None:
    """Raises ValueError unless the shapes of all tensors are known."""
    if not all(x.shape.is_fully_defined() for x in present(tensors)):
        raise UserValueError(
            path=path,
            expected="inputs and targets of static shapes",
            got=Words(specs_text(tensors)),
            hint="Batch with drop_remainder=True, pad to a static shape, or set it "
            "with tf.ensure_shape.",
        )


def cut_batch(
    tensors: Any,
    num_micro_batches: int,
    num_rows: int | None,
    batch_dim: int,
    path: str,
) -> MicroBatches:
    """Returns how to cut a mini-batch. `tensors` is a structure of tensors and None.

    `num_rows` is b if the user sets it, or None.

    Raises:
        ValueError: if the tensors, M, `num_rows` and `batch_dim` do not fit together.
    """
    present_tensors = present(tensors)
    ranks = [x.shape.rank for x in present_tensors]
    if ranks and all(rank and rank <= batch_dim for rank in ranks):
        raise UserValueError(
            path=f"{path}.batch_dim",
            expected=f"a dimension, counted from 0, of {specs_text(tensors)}",
            got=batch_dim,
        )
    sizes = {
        x.shape[row_dim(x.shape.rank, batch_dim)] if x.shape.rank else None
        for x in present_tensors
    }
    batch_size = sizes.pop() if len(sizes) == 1 else None
    if batch_size is None:
        raise UserValueError(
            path=path,
            expected="inputs and targets with the same, known number of examples in "
            f"dimension {batch_dim}",
            got=Words(specs_text(tensors) or "none"),
            hint="Batch with drop_remainder=True, or set the static shape.",
        )
    check_static(tensors, path)
    if batch_size < num_micro_batches:
        raise UserValueError(
            path=f"{path}.num_micro_batches",
            expected=f"at most the {batch_size} examples of the mini-batch",
            got=num_micro_batches,
        )
    cut = MicroBatches(batch_size, num_micro_batches, batch_dim)
    if num_rows is not None and num_rows != cut.num_rows:
        raise UserValueError(
            path=f"{path}.micro_batch_size",
            expected=f"{cut.num_rows}, which is {batch_size} examples over "
            f"{num_micro_batches} micro-batches, rounded up",
            got=num_rows,
        )
    return cut


def _move(x: tf.Tensor, source: int, target: int) -> tf.Tensor:
    if source == target:
        return x
    order = [i for i in range(x.shape.rank) if i != source]
    order.insert(target, source)
    return tf.transpose(x, order)
