"""ForwardContext: inputs of a forward pass besides theta and the layer's inputs.

Some layers depend on training or evaluation, or, for random streams, on the step and
the examples. Some need storage for auxiliary outputs: sums (batch norm's moments),
auxiliary losses and metrics. The caller of a forward pass opens a context around it:

    with ForwardContext(step=step, first_example=0) as context:
        y = layer.FProp(layer.theta, x)
    context.accumulated  # {'path/of/bn/moments': tensor, ...}

Without a context a layer runs in training mode, and layers that need the step and the
examples raise an error.

Shapes: b rows in the inputs. The examples come first. Padding rows may follow them, and
contribute to nothing.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf
from tensorflow.python.ops.control_flow_v2_func_graphs import CondBranchFuncGraph

from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.core.nests import present, wide_dtype, wide_sum
from lingvo_pipe.layers.core import random_streams

Pair = tuple[tf.Tensor, tf.Tensor]

_local = threading.local()


@dataclass(eq=False, kw_only=True)
class ForwardContext:
    """The context of one forward pass over consecutive examples.

    Attributes:
        do_eval: True for evaluation: no dropout, and batch norm by its moving averages.
        step: [] int64, the training step.
        first_example: [] int64, position of the first example in the mini-batch.
        num_examples: [] int32, number of rows that are examples. If None, all rows.
        batch_dim: dimension of the rows in the inputs.
        num_rows: b, in pipelines. If None, any number.
        drawn_rows: b outside of pipelines, only for random numbers; see `known_rows`.
        vocabulary_size: number of tokens that may be predicted. If None, all that the
            model has.
        root_path: path of the layer that this context runs. The paths in `accumulated`
            are relative to it.
        root_hash: [] uint64, hash of this layer's path in the model. It is a tensor, so
            that identical layers can share a trace. If None, `root_path` is hashed.
        compute_loss: function from the outputs of a `LocalLossLayer`'s head to the
            task's metrics: pairs (sum, weight), one called `loss`. None if no loss is
            trained.
        accumulated: values by the accumulators' paths.
        losses: sums of auxiliary losses by name.
        local_losses: sums of the losses of `LocalLossLayer`s.
        local_metrics: metrics of `LocalLossLayer`s, as pairs (sum, weight) by name.
        metric_pairs: reported pairs (mean, weight) by name.
        draws: how often each path and seed has drawn random numbers.
    """

    do_eval: bool = False
    step: Any = None
    first_example: Any = None
    num_examples: tf.Tensor | None = None
    batch_dim: int = 0
    num_rows: int | None = None
    vocabulary_size: int | None = None
    root_path: str = ""
    root_hash: tf.Tensor | None = None
    compute_loss: Callable[[Any], Mapping[str, Pair]] | None = None
    accumulated: dict[str, tf.Tensor] = field(default_factory=dict, init=False)
    losses: dict[str, tf.Tensor] = field(default_factory=dict, init=False)
    local_losses: list[tf.Tensor] = field(default_factory=list, init=False)
    local_metrics: dict[str, Pair] = field(default_factory=dict, init=False)
    metric_pairs: dict[str, list[Pair]] = field(default_factory=dict, init=False)
    draws: Counter[tuple[str, int]] = field(default_factory=Counter, init=False)
    drawn_rows: int | None = field(default=None, init=False)
    _graph: Any = field(default_factory=lambda: graph_of_call(), init=False)
    _branches: dict[tuple[str, int], Any] = field(default_factory=dict, init=False)

    def __enter__(self) -> ForwardContext:
        _open_contexts().append(self)
        return self

    def __exit__(self, *unused: object) -> None:
        _open_contexts().pop()

    @property
    def may_have_padding_rows(self) -> bool:
        """True if some rows may be padding."""
        return self.num_examples is not None

    @property
    def metrics(self) -> dict[str, Pair]:
        """All metrics as pairs (sum, weight) by name."""
        pairs_by_name = dict(self.local_metrics)
        for name, pairs in self.metric_pairs.items():
            # A micro-batch of weight 0 may have a mean of 0 / 0.
            sums = [(tf.math.multiply_no_nan(*pair), pair[1]) for pair in pairs]
            pairs_by_name[name] = functools.reduce(
                lambda a, b: (a[0] + b[0], a[1] + b[1]), sums
            )
        return pairs_by_name

    def relative_path(self, path: str) -> str:
        """Returns `path` relative to the layer that this context runs.

        Raises:
            ValueError: if the path is outside of that layer.
        """
        root = self.root_path
        if not root:
            return path
        if not f"{path}/".startswith(f"{root}/"):
            raise UserValueError(
                path=path,
                expected=f"a layer in {root!r}, which this context runs",
                hint="Create the layer as a child of the layer that uses it.",
            )
        return path[len(root) + 1 :]

    def accumulate(self, path: str, value: tf.Tensor) -> None:
        """Records this forward pass's value for the accumulator at `path`."""
        key = self.relative_path(path)
        if key in self.accumulated:
            raise UserValueError(
                path=path,
                expected="one accumulated value per forward pass",
                got=Words("two"),
                hint="Call the layer once, or create a layer per call.",
            )
        self.accumulated[key] = tf.stop_gradient(value)

    def row_weights(self, x: tf.Tensor) -> tf.Tensor | None:
        """Returns a weight for each row: 1 for examples, and 0 for padding rows.

        The weights are `[1, .. b .., 1]` in `x`'s dtype and rank, to multiply with `x`.
        Returns None if there are no padding rows.

        Raises:
            ValueError: if `x` has another number of rows than the inputs.
        """
        if self.num_examples is None:
            return None
        dim = self._checked_row_dim(x)
        num_rows = tf.shape(x)[dim] if x.shape[dim] is None else x.shape[dim]
        weights = tf.sequence_mask(self.num_examples, num_rows, x.dtype)
        return tf.reshape(weights, [-1 if i == dim else 1 for i in range(x.shape.rank)])

    def example_rows(self, x: tf.Tensor) -> tf.Tensor:
        """Returns the rows of `x` that are examples. See `row_weights` for errors."""
        if self.num_examples is None:
            return x
        dim = self._checked_row_dim(x)
        sizes = [self.num_examples if i == dim else -1 for i in range(x.shape.rank)]
        rows = tf.slice(x, [0] * x.shape.rank, sizes)
        rows.set_shape([None if i == dim else n for i, n in enumerate(x.shape)])
        return rows

    def add_loss(self, name: str, values: tf.Tensor) -> None:
        """Records a loss for each row, `[b]`. Losses of one name add up."""
        # A sum of many examples in 16 bits would be far off.
        values = tf.cast(values, wide_dtype(values.dtype))
        weights = self.row_weights(values)
        total = tf.reduce_sum(values if weights is None else values * weights)
        before = self.losses.get(name)
        self.losses[name] = total if before is None else wide_sum(before, total)

    def add_metric(self, name: str, mean: tf.Tensor, weight: tf.Tensor) -> None:
        """Records a metric. Metrics of one name are averaged by their weights."""
        mean, weight = (
            tf.stop_gradient(tf.cast(x, tf.float32)) for x in (mean, weight)
        )
        self.metric_pairs.setdefault(name, []).append((mean, weight))

    def add_local_loss(self, name: str, sums: Mapping[str, Pair]) -> None:
        """Records the metrics of a `LocalLossLayer`, with `name` before their names."""
        self.local_losses.append(sums["loss"][0])
        for key, (total, weight) in sums.items():
            self.local_metrics[f"{name}_{key}"] = tf.stop_gradient(total), weight

    def uniform(
        self,
        path: str,
        seed: int,
        shape: Any,
        below: float | None = None,
        per_example: bool = False,
    ) -> tf.Tensor:
        """Draws uniform [0, 1) numbers for the layer of this path and seed.

        If `below`, in (0, 1], is given, returns booleans: whether each number is below
        it. A layer that draws again in the same forward pass gets other numbers.

        The shape is static, and has the rows in dimension `batch_dim`. If that is the
        first dimension, an example may have several consecutive rows, as in `[B·T, D]`.
        These have equal numbers if `per_example`.

        Raises:
            ValueError: if the step or the examples are unknown, or the shape is wrong.
        """
        if self.step is None or self.first_example is None:
            raise UserValueError(
                path=path,
                expected="a step and an example, on which random numbers depend",
                hint="Run it within ForwardContext(step=..., first_example=...), or "
                "with do_eval=True.",
            )
        shape = tf.TensorShape(shape)
        if not shape.is_fully_defined() or shape.rank == 0:
            expected = "inputs of a static shape, to draw random numbers"
            raise UserValueError(path=path, expected=expected, got=Words(shape))
        root, seed_hash = self.root_hash, random_streams.path_hash(str(seed))
        if root is None:
            root = tf.constant(random_streams.path_hash(self.root_path), tf.uint64)
        name, before = self.relative_path(path), self.count_draw(path, seed)
        key = random_streams.extend_hash(root, f"{name}/{before}" if before else name)
        key += tf.constant(seed_hash, tf.uint64)
        sizes = shape.as_list()
        dim = row_dim(len(sizes), self.batch_dim)
        num_rows = self.num_rows or self.drawn_rows or sizes[dim]
        if sizes[dim] % num_rows or (dim > 0 and sizes[dim] != num_rows):
            raise UserValueError(
                path=path,
                expected=f"random numbers for the inputs' {num_rows} rows in dimension "
                f"{self.batch_dim}",
                got=Words(f"shape {shape}"),
                hint="Draw before rows are merged or dropped.",
            )
        rows_each = sizes.pop(dim) // num_rows
        drawn = [num_rows, 1 if per_example else rows_each, *sizes]
        numbers = random_streams.uniform_rows(
            key, self.step, self.first_example, drawn, below
        )
        if drawn[1] != rows_each:
            numbers = tf.repeat(numbers, rows_each, axis=1)
        numbers = tf.reshape(numbers, [num_rows * rows_each, *sizes])
        if dim == 0:
            return numbers
        order = [*range(1, dim + 1), 0, *range(dim + 1, len(sizes) + 1)]
        return tf.transpose(numbers, order)

    def count_draw(self, path: str, seed: int) -> int:
        """Counts a draw. Returns how many draws of this path and seed came before.

        A graph draws once in a loop's body, and in all branches. Eager code draws in
        each iteration, and in one branch. So draws are refused where these counts may
        differ.
        """
        around = control_flow(self._graph)
        in_loop = not all(isinstance(x, CondBranchFuncGraph) for x in around)
        branch = self._branches.get((path, seed))
        if in_loop or (branch is not None and branch not in around):
            raise UserValueError(
                path=path,
                expected="random numbers drawn outside of loops, and in one branch of "
                "a condition at most",
                got=Words(
                    "a draw in a loop" if in_loop else "a draw after one in a branch"
                ),
                hint="Draw before the loop or condition, or create a layer per draw.",
            )
        self._branches[path, seed] = around[0] if around else None
        self.draws[path, seed] += 1
        return self.draws[path, seed] - 1

    def _checked_row_dim(self, x: tf.Tensor) -> int:
        dim = row_dim(x.shape.rank, self.batch_dim)
        rows = x.shape[dim] if x.shape.rank else 0
        if None not in (rows, self.num_rows) and rows != self.num_rows:
            raise UserValueError(
                path="Padding rows",
                expected=f"the inputs' {self.num_rows} rows in dimension "
                f"{self.batch_dim}",
                got=Words(f"{x.dtype.name} {x.shape}"),
                hint="Call this before rows are merged or dropped, or choose a "
                "mini-batch size that is a multiple of num_micro_batches.",
            )
        return dim


def row_dim(rank: int, batch_dim: int) -> int:
    """Returns the dimension of the rows: `batch_dim`, but at most the last one."""
    return min(batch_dim, rank - 1)


@contextlib.contextmanager
def known_rows(inputs: Any) -> Iterator[None]:
    """Lets layers outside of pipelines draw by the rows of the first input.

    A layer that merges rows to `[B·T, D]` then draws as in a pipeline.
    """
    context = current_context()
    if context.num_rows is not None or context.drawn_rows is not None:
        yield
        return
    shapes = [tf.TensorShape(getattr(x, "shape", [])) for x in present(inputs)[:1]]
    rows = [x[row_dim(x.rank, context.batch_dim)] for x in shapes if x.rank]
    context.drawn_rows = rows[0] if rows else None
    try:
        yield
    finally:
        context.drawn_rows = None


def current_context() -> ForwardContext:
    """Returns the innermost open context, or else a training context without a step."""
    contexts = _open_contexts()
    return contexts[-1] if contexts else ForwardContext()


def graph_of_call() -> Any:
    """Returns the graph under construction, or None in eager code."""
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


def control_flow(outermost: Any) -> list[Any]:
    """Returns the graphs of loops and branches below `outermost`, innermost first."""
    graphs, graph = [], graph_of_call()
    while graph is not None and graph is not outermost:
        if getattr(graph, "is_control_flow_graph", False):
            graphs.append(graph)
        graph = getattr(graph, "outer_graph", None)
    return graphs


def _open_contexts() -> list[ForwardContext]:
    return _local.__dict__.setdefault("contexts", [])
