"""A layer's forward pass as a function that alike layers share.

It is kept out of line and takes theta as an argument, never by capture; so a hundred
equal layers are traced once, and the operations within are the same however the layers
are grouped into stages: the ground on which results do not depend on the number of
stages.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from lingvo_pipe.layers.accumulators import accumulator_paths
from lingvo_pipe.layers.base_layer import BaseLayer
from lingvo_pipe.layers.forward_context import ForwardContext, row_dim
from lingvo_pipe.layers.local_loss import LocalLossLayer
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.optional_nest import map_present, present
from lingvo_pipe.pipeline.tracing.filler_rows import check_fillers_left_out
from lingvo_pipe.pipeline.tracing.layer_identity import LayerIdentity
from lingvo_pipe.pipeline.tracing.loss_sums import LossFunction, loss_sums
from lingvo_pipe.pipeline.tracing.named_errors import named_errors, specs_text
from lingvo_pipe.pipeline.tracing.place_reads import PlaceReads
from lingvo_pipe.pipeline.tracing.purity import check_pure
from lingvo_pipe.pipeline.tracing.same_trace import same_traces
from lingvo_pipe.pipeline.tracing.trace import Result, Surroundings, Trace
from lingvo_pipe.pipeline.tracing.traced_functions import close_functions


class LayerFunctions:
    """The traces of a model's layers, in training or in evaluation.

    Attributes:
        row_change: a sentence about the first layer that returned other rows than it
            was given, for the errors that this may lead to; or nothing.
    """

    def __init__(
        self,
        do_eval: bool,
        trains: bool,
        batch_dim: int = 0,
        state_dtype: tf.DType | None = None,
        num_rows: int | None = None,
        stages: Mapping[str, int] | None = None,
        has_last: bool = True,
        loss_fn: LossFunction | None = None,
    ):
        """Initialises the functions.

        Args:
            do_eval: whether layers run in evaluation.
            trains: whether they are differentiated.
            batch_dim: see `ForwardContext`.
            state_dtype: of the floating tensors that layers hand on to others; None:
                as they return them.
            num_rows: of the inputs; None: whatever they have.
            stages: by the paths of layers, for errors.
            has_last: whether the last layer is the model's too, whose outputs are for
                no other layer.
            loss_fn: of the model, for blocks with losses of their own.
        """
        self.do_eval = do_eval
        self.trains = trains
        self.batch_dim = batch_dim
        self.state_dtype = state_dtype
        self.num_rows = num_rows
        self.row_change = ""
        self._stages = stages or {}
        self._has_last = has_last
        self._loss_fn = loss_fn
        self._known: list[tuple[LayerIdentity, Trace]] = []

    def context(
        self, surroundings: Surroundings, root_path: str = ""
    ) -> ForwardContext:
        """The context of a forward pass in these surroundings."""
        return ForwardContext(
            do_eval=self.do_eval,
            step=surroundings.step,
            first_example=surroundings.first_example,
            num_examples=surroundings.num_examples,
            batch_dim=self.batch_dim,
            num_rows=self.num_rows,
            root_path=root_path,
            root_hash=surroundings.path_hash,
        )

    def takes_targets(self, layer: BaseLayer) -> bool:
        """Whether a layer is given the loss's targets, as the last of its inputs."""
        trains_by_loss = self._loss_fn is not None and not self.do_eval
        return trains_by_loss and isinstance(layer, LocalLossLayer)

    def give_loss(self, context: ForwardContext, targets: Any) -> None:
        """Gives the context of a layer that takes targets what computes the loss."""
        loss_fn = self._loss_fn
        assert loss_fn is not None
        context.compute_loss = lambda outputs: loss_sums(
            loss_fn, context, (outputs, targets)
        )

    def trace(
        self,
        layer: BaseLayer,
        theta: Any,
        surroundings: Surroundings,
        args: Any,
        is_last: bool,
    ) -> Trace:
        """The trace of a layer, for these specs of weights and inputs."""
        dtype = None if is_last and self._has_last else self.state_dtype
        identity = LayerIdentity(layer, (theta, surroundings, args, dtype))
        alike = [pair for pair in self._known if pair[0].is_alike(identity)]
        trace = next((t for known, t in alike if known.reads_the_same(identity)), None)
        if trace is None:
            traced = self._traced(layer, theta, surroundings, args, dtype, identity)
            # What was read of its place may have made no difference.
            trace = next((t for _, t in alike if same_traces(t, traced)), traced)
            self._known.append((identity, trace))
        close_functions(layer)
        self._note_row_change(layer, present(trace.result.outputs))
        return trace

    def _traced(
        self,
        layer: BaseLayer,
        theta: Any,
        surroundings: Surroundings,
        args: Any,
        dtype: tf.DType | None,
        identity: LayerIdentity,
    ) -> Trace:
        """A trace of its own; what it reads of places is noted in its identity."""
        trained = [variable.trainable for variable in tf.nest.flatten(layer.vars)]
        body = functools.partial(_forward, layer, self, dtype, identity.reads)
        with named_errors(self.where(layer), args, self.row_change):
            return Trace(body, theta, trained, surroundings, args, self.trains)

    def place(self, layer: BaseLayer) -> str:
        """A layer's path and stage, for errors."""
        return layer.path + self._stage(layer)

    def place_of_loss(self, last_layer: BaseLayer) -> str:
        """Likewise of the loss."""
        return f"the loss{self._stage(last_layer)}"

    def where(self, layer: BaseLayer) -> str:
        """What an error says of a layer's forward pass."""
        return f"FProp of the {type(layer).__name__} at {self.place(layer)}"

    def _stage(self, layer: BaseLayer) -> str:
        stage = self._stages.get(layer.path)
        return "" if stage is None else f" (stage {stage})"

    def _note_row_change(self, layer: BaseLayer, outputs: list[tf.Tensor]) -> None:
        """Says of the first layer none of whose outputs has the inputs' rows."""
        if self.row_change or self.num_rows is None:
            return
        rows = {
            x.shape[row_dim(x.shape.rank, self.batch_dim)]
            for x in outputs
            if x.shape.rank
        }
        if self.num_rows not in rows:
            self.row_change = (
                f"Of {self.num_rows} rows {self.place(layer)} made "
                f"{specs_text(outputs) or 'nothing'}."
            )


def _forward(
    layer: BaseLayer,
    functions: LayerFunctions,
    state_dtype: tf.DType | None,
    reads: PlaceReads,
    theta: Any,
    surroundings: Surroundings,
    args: Any,
) -> Result:
    """What alike layers share; in its results paths are relative to the layer."""
    context = functions.context(surroundings, root_path=layer.path)
    theta = layer.CastTheta(theta)
    inputs = args
    if functions.takes_targets(layer):
        *inputs, targets = args
        functions.give_loss(context, targets)
    with context, reads.noting(layer):
        outputs = layer.FProp(theta, *inputs)
    graph, where = tf.compat.v1.get_default_graph(), functions.where(layer)
    check_pure(graph, where, root(layer).VariablePaths())
    _check_outputs(outputs)
    if state_dtype is not None:
        outputs = map_present(lambda x: _as_state(x, state_dtype), outputs)
    if context.do_eval:
        context.accumulated.clear()  # An evaluation has no totals.
    else:
        _check_all_accumulated(layer, context)
    check_fillers_left_out(context, surroundings, args, where)
    sums = NestedMap(
        accumulated=context.accumulated,
        losses=context.losses,
        metrics=context.metrics,
    )
    return Result(outputs, sums, list(context.losses.values()), context.local_losses)


def _as_state(x: Any, dtype: tf.DType) -> tf.Tensor:
    x = tf.convert_to_tensor(x)
    return tf.cast(x, dtype) if x.dtype.is_floating else x


def _check_outputs(outputs: Any) -> None:
    """Raises ValueError unless the outputs could cross to another device."""
    wrong = [
        f"{x.dtype.name} {x.shape}"
        if isinstance(x, tf.Tensor)
        else f"a {type(x).__name__}"
        for x in tf.nest.flatten(outputs)
        if tf.is_tensor(x) and not _is_dense_and_static(x)
    ]
    if wrong:
        raise ValueError(
            "What a layer hands on must be dense tensors of static shape, for it may "
            f"cross to another device; it returned {', '.join(wrong)}. Pad to a "
            "static shape, or state it by tf.ensure_shape."
        )


def _is_dense_and_static(x: Any) -> bool:
    return isinstance(x, tf.Tensor) and x.shape.is_fully_defined()


def _check_all_accumulated(layer: BaseLayer, context: ForwardContext) -> None:
    registered = {context.relative_path(path) for path in accumulator_paths(layer)}
    missing = sorted(registered - set(context.accumulated))
    if missing:
        raise ValueError(
            "Every registered accumulator must be given its share in each training "
            f"forward pass; {layer.path} was not given {missing}. Call Accumulate."
        )


def root(layer: BaseLayer) -> BaseLayer:
    """The layer at the top of the tree that `layer` is in."""
    return layer if layer.parent is None else root(layer.parent)
