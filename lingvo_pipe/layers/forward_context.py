"""What a forward pass knows beside theta and its inputs.

`FProp(theta, inputs)` says all that a plain layer needs. A few need more: whether this
is training or evaluation, which step and which examples these are (for random streams),
and a place to hand over what is no output: sums (batch norm's moments), side losses and
metrics. The context carries it; whoever runs the forward pass opens one around it:

    with ForwardContext(step=step, first_example=0) as context:
        y = layer.FProp(layer.theta, x)
    context.accumulated  # {'path/of/bn/moments': tensor, ...}

Without a context a layer runs in training mode; what needs step and example refuses.

Shapes: b rows in the inputs; the first of them are examples, and the others, if there
are any, fill up and have no share in anything.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from lingvo_pipe.layers import random_streams

Pair = tuple[tf.Tensor, tf.Tensor]

_local = threading.local()


class ForwardContext:
    """The surroundings of one forward pass over consecutive examples."""

    def __init__(
        self,
        *,
        do_eval: bool = False,
        step: Any = None,
        first_example: Any = None,
        num_examples: tf.Tensor | None = None,
        batch_dim: int = 0,
        num_rows: int | None = None,
        root_path: str = "",
        root_hash: tf.Tensor | None = None,
        compute_loss: Callable[[Any], Mapping[str, Pair]] | None = None,
    ):
        """Initialises the context.

        Args:
            do_eval: evaluation: no dropout, batch norm from its moving averages.
            step: [] int64, the training step.
            first_example: [] int64, place in the mini-batch of the first example.
            num_examples: [] int32, how many of the rows are examples; None: all.
            batch_dim: the inputs' dimension of rows.
            num_rows: b; None: whatever the inputs have.
            root_path: path of the layer that runs, if `root_hash` stands for it.
            root_hash: [] uint64, the hash of the path that the layer has in the model;
                a tensor, so that layers which are alike can share a trace.
            compute_loss: what a `LocalLossLayer` gives its outputs to: the task's
                metrics of them as pairs (sum, weight), one called `loss`; None where
                nothing is trained by a loss.
        """
        self.do_eval = do_eval
        self.step = step
        self.first_example = first_example
        self.batch_dim = batch_dim
        self.num_rows = num_rows
        self._num_examples = num_examples
        self._root_path = root_path
        self._root_hash = root_hash
        self.accumulated: dict[str, tf.Tensor] = {}
        self.compute_loss = compute_loss
        self.losses: dict[str, tf.Tensor] = {}
        self.local_losses: list[tf.Tensor] = []
        self._local_metrics: dict[str, Pair] = {}
        self.metric_pairs: dict[str, list[Pair]] = {}

    def __enter__(self) -> ForwardContext:
        _open_contexts().append(self)
        return self

    def __exit__(self, *unused: object) -> None:
        _open_contexts().pop()

    @property
    def may_have_fillers(self) -> bool:
        """Whether some rows may be no examples."""
        return self._num_examples is not None

    @property
    def metrics(self) -> dict[str, Pair]:
        """Pairs (sum, weight) by name, of the pairs (mean, weight) handed over."""
        found = dict(self._local_metrics)
        for name, pairs in self.metric_pairs.items():
            sums = [(mean * weight, weight) for mean, weight in pairs]
            found[name] = functools.reduce(_add_pairs, sums)
        return found

    def relative_path(self, path: str) -> str:
        """`path` seen from the layer that this context runs.

        Raises:
            ValueError: if it is the path of nothing in that layer.
        """
        root = self._root_path
        if not root:
            return path
        if not f"{path}/".startswith(f"{root}/"):
            raise ValueError(
                f"A context runs one layer and what is below it, here {root!r}; "
                f"{path!r} is not. Create the layer as a child of the one that uses it."
            )
        return path[len(root) + 1 :]

    def accumulate(self, path: str, value: tf.Tensor) -> None:
        """Hands over this pass's share of the sum called `path`."""
        key = self.relative_path(path)
        if key in self.accumulated:
            raise ValueError(
                f"An accumulator takes one value a forward pass; {path!r} was given a "
                "second. Call a layer with accumulators once, or create one a call."
            )
        self.accumulated[key] = tf.stop_gradient(value)

    def row_weights(self, x: tf.Tensor) -> tf.Tensor | None:
        """1 for rows that are examples and 0 for others, to multiply with `x`.

        Returns:
            `[1, .. b .., 1]` in `x`'s dtype and rank; None if all rows are examples.

        Raises:
            ValueError: if `x` has another number of rows than the inputs.
        """
        if self._num_examples is None:
            return None
        dim = self._checked_row_dim(x)
        weights = tf.sequence_mask(self._num_examples, x.shape[dim], x.dtype)
        return tf.reshape(weights, [-1 if i == dim else 1 for i in range(x.shape.rank)])

    def example_rows(self, x: tf.Tensor) -> tf.Tensor:
        """The rows of `x` that are examples.

        Raises:
            ValueError: if `x` has another number of rows than the inputs.
        """
        if self._num_examples is None:
            return x
        dim = self._checked_row_dim(x)
        sizes = [self._num_examples if i == dim else -1 for i in range(x.shape.rank)]
        return tf.slice(x, [0] * x.shape.rank, sizes)

    def add_loss(self, name: str, values: tf.Tensor) -> None:
        """Hands over a loss of each example, `[b]`; those of one name add up."""
        # In 16 bits the sum over many examples would be far off.
        values = tf.cast(values, values.dtype if values.dtype.size > 2 else tf.float32)
        weights = self.row_weights(values)
        total = tf.reduce_sum(values if weights is None else values * weights)
        before = self.losses.get(name)
        if before is not None:
            wide = max(before.dtype, total.dtype, key=lambda dtype: dtype.size)
            total = tf.cast(before, wide) + tf.cast(total, wide)
        self.losses[name] = total

    def add_metric(self, name: str, mean: tf.Tensor, weight: tf.Tensor) -> None:
        """Hands over a metric; those of one name are averaged by their weights."""
        mean, weight = (
            tf.stop_gradient(tf.cast(x, tf.float32)) for x in (mean, weight)
        )
        self.metric_pairs.setdefault(name, []).append((mean, weight))

    def add_local_loss(self, name: str, sums: Mapping[str, Pair]) -> None:
        """Hands over what trains a block of layers by itself.

        Args:
            name: before the names of the metrics.
            sums: as of `compute_loss`.
        """
        self.local_losses.append(sums["loss"][0])
        for key, (total, weight) in sums.items():
            self._local_metrics[f"{name}_{key}"] = tf.stop_gradient(total), weight

    def uniform(self, path: str, seed: int, shape: Any) -> tf.Tensor:
        """Uniform [0, 1) numbers of static `shape` for the layer at `path`.

        Args:
            path: of the layer.
            seed: of the layer.
            shape: with the rows in dimension `batch_dim`; or, if that is the first,
                several consecutive rows for each, as in `[B·T, D]`.

        Raises:
            ValueError: if the context does not say which step and examples these are,
                the shape is not static, or its rows belong to no certain examples.
        """
        if self.step is None or self.first_example is None:
            raise ValueError(
                f"Random numbers depend on the step and the example; layer {path!r} "
                "drew some where neither is known. Run it within ForwardContext(step="
                "..., first_example=...), or with do_eval=True."
            )
        shape = tf.TensorShape(shape)
        if not shape.is_fully_defined() or shape.rank == 0:
            raise ValueError(
                "Random numbers are drawn by example, for a shape known when "
                f"tracing; layer {path!r} drew some of shape {shape}. Give the inputs "
                "a static shape."
            )
        relative = self.relative_path(path)
        if self._root_hash is None:
            root = tf.constant(random_streams.path_hash(self._root_path), tf.uint64)
        else:
            root = self._root_hash
        key = random_streams.extend_hash(root, relative) + tf.constant(
            random_streams.path_hash(str(seed)), tf.uint64
        )
        sizes = shape.as_list()
        dim = row_dim(len(sizes), self.batch_dim)
        num_rows = self.num_rows or sizes[dim]
        if sizes[dim] % num_rows or (dim > 0 and sizes[dim] != num_rows):
            raise ValueError(
                "Random numbers are drawn by example, so their shape must have the "
                f"inputs' rows, here {num_rows} in dimension {self.batch_dim}; layer "
                f"{path!r} drew some of shape {shape}. Draw before rows are merged or "
                "dropped."
            )
        rows_each = sizes.pop(dim) // num_rows
        numbers = random_streams.uniform_rows(
            key, self.step, self.first_example, [num_rows, rows_each, *sizes]
        )
        numbers = tf.reshape(numbers, [num_rows * rows_each, *sizes])
        if dim == 0:
            return numbers
        order = [*range(1, dim + 1), 0, *range(dim + 1, len(sizes) + 1)]
        return tf.transpose(numbers, order)

    def _checked_row_dim(self, x: tf.Tensor) -> int:
        dim = row_dim(x.shape.rank, self.batch_dim)
        rows = x.shape[dim] if x.shape.rank else 0
        if None not in (rows, self.num_rows) and rows != self.num_rows:
            raise ValueError(
                "Which rows are examples is known of tensors with the inputs' rows, "
                f"here {self.num_rows} in dimension {self.batch_dim}; this one is "
                f"{x.dtype.name} {x.shape}. Ask before rows are merged or dropped, or "
                "choose a mini-batch that is a multiple of num_micro_batches."
            )
        return dim


def _add_pairs(a: Pair, b: Pair) -> Pair:
    return a[0] + b[0], a[1] + b[1]


def row_dim(rank: int, batch_dim: int) -> int:
    """The dimension of rows in a tensor: `batch_dim`, or the last if it has fewer."""
    return min(batch_dim, rank - 1)


def current() -> ForwardContext:
    """The innermost open context; a training one without step if there is none."""
    contexts = _open_contexts()
    return contexts[-1] if contexts else ForwardContext()


def _open_contexts() -> list[ForwardContext]:
    """This thread's, outermost first."""
    if not hasattr(_local, "contexts"):
        _local.contexts = []
    return _local.contexts
