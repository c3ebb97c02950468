"""Traces a model's layers and its loss. Identical layers share a trace.

The traced function of a layer takes theta as an argument, and never captures it. So a
hundred equal layers are traced once. The operations are the same however the layers are
grouped into stages: results do not depend on the number of stages.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.core.nests import present
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.core.forward_context import ForwardContext, Pair, row_dim
from lingvo_pipe.layers.core.layer_tree import accumulator_paths
from lingvo_pipe.layers.core.place_reads import PlaceReads
from lingvo_pipe.layers.local_loss import LocalLossLayer
from lingvo_pipe.layers.sequential import as_state
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.tracing.cut import REFERENCES, dependents
from lingvo_pipe.pipeline.tracing.layer_identity import LayerIdentity, graph_key
from lingvo_pipe.pipeline.tracing.loss_function import (
    LossFunction,
    loss_sums,
    weight_has_gradient,
)
from lingvo_pipe.pipeline.tracing.named_errors import named_errors, specs_text
from lingvo_pipe.pipeline.tracing.padding_rows import check_padding_rows_left_out
from lingvo_pipe.pipeline.tracing.purity import OF_LAYERS, OF_LOSSES, check_pure
from lingvo_pipe.pipeline.tracing.trace import CallContext, Result, Trace


@dataclasses.dataclass(eq=False)
class LayerFunctions:
    """The traces of a model's layers and loss, in training or in evaluation."""

    do_eval: bool  # Whether layers run in evaluation.
    trains: bool  # Whether layers are differentiated.
    batch_dim: int = 0  # See `ForwardContext`.
    # Dtype of the floating-point tensors between layers; if None, the dtype that the
    # layers return.
    state_dtype: tf.DType | None = None
    num_rows: int | None = None  # Rows of the inputs; None for any number.
    # Stages by the paths of layers, for errors.
    stages: Mapping[str, int] = dataclasses.field(default_factory=dict)
    # Whether the last layer is also the model's last layer, whose outputs go to no
    # other layer.
    has_last: bool = True
    loss_fn: LossFunction | None = None
    # The `compute_loss` of layers with losses of their own, where there is no loss_fn.
    compute_loss: Callable[[Any], Mapping[str, Pair]] | None = None
    num_micro_batches: int = 1  # M.
    # A sentence about the first layer whose outputs have another number of rows than
    # its inputs, for the errors that this may cause; or "".
    row_change: str = dataclasses.field(default="", init=False)
    _known: list[tuple[LayerIdentity, Trace]] = dataclasses.field(
        default_factory=list, init=False
    )
    _by_graph: dict[str, Trace] = dataclasses.field(default_factory=dict, init=False)

    def context(self, call_context: CallContext, root_path: str = "") -> ForwardContext:
        """Returns the context in which a layer, or the loss, runs forward."""
        return ForwardContext(
            do_eval=self.do_eval,
            step=call_context.step,
            first_example=call_context.first_example,
            num_examples=call_context.num_examples,
            batch_dim=self.batch_dim,
            num_rows=self.num_rows,
            root_path=root_path,
            root_hash=call_context.path_hash,
        )

    def trace_loss(
        self,
        last_layer: BaseLayer,
        call_context: CallContext,
        outputs: Any,
        targets: Any,
    ) -> Trace:
        """Traces the loss of a micro-batch. `outputs` and `targets` are specs.

        The trace's sums are NestedMap(metrics=NestedMap(name=(sum, weight))), with the
        dtypes of `loss_sums`.

        Raises:
            ValueError: if the loss breaks a rule, or does not depend on the outputs.
        """
        body = functools.partial(self._loss, last_layer)
        args = outputs, targets
        with named_errors(self.loss_label(last_layer), args, self.row_change):
            trace = Trace(body, [], [], call_context, args, self.trains)
            if self.trains:
                self._check_loss_pure(last_layer, trace.graph)
        of_outputs = trace.input_gradients[: len(present(outputs))]
        if self.trains and not present(of_outputs):
            raise UserValueError(
                path="ComputeLoss",
                expected=f"a loss that depends on the outputs of {last_layer.path}",
                got=Words("no gradient"),
                hint="Look for a tf.stop_gradient, a comparison or an integer cast.",
            )
        if self.trains and self.num_micro_batches > 1:
            self._warn_of_weight(last_layer, trace, call_context, args)
        return trace

    def takes_targets(self, layer: BaseLayer) -> bool:
        """Returns whether a layer gets the loss's targets as its last input."""
        trains_by_loss = self.loss_fn is not None and not self.do_eval
        return trains_by_loss and isinstance(layer, LocalLossLayer)

    def trace(
        self,
        layer: BaseLayer,
        theta: Any,
        call_context: CallContext,
        args: Any,
        is_last: bool,
    ) -> Trace:
        """Returns a layer's trace, perhaps made earlier for an identical layer.

        `theta`, `call_context` and `args` are specs.
        """
        dtype = None if is_last and self.has_last else self.state_dtype
        identity = LayerIdentity(layer, (theta, call_context, args, dtype))
        same = [pair for pair in self._known if pair[0].matches(identity)]
        trace = next(
            (t for candidate, t in same if candidate.has_same_reads(identity)), None
        )
        if trace is None:
            trained = tf.nest.flatten(layer.trained)
            body = functools.partial(self._forward, layer, dtype, identity.reads)
            with named_errors(self.location(layer), args, self.row_change):
                traced = Trace(body, theta, trained, call_context, args, self.trains)
                if self.trains:  # Gradient functions too.
                    self._check_pure(layer, traced.graph)
            # Layers that are not identical may still have equal graphs.
            key = graph_key(traced)
            trace = self._by_graph.setdefault(key, traced) if key else traced
            self._known.append((identity, trace))
        _close_functions(layer)
        self._note_row_change(layer, present(trace.result.outputs))
        return trace

    def label(self, layer: BaseLayer) -> str:
        """Returns a layer's path and stage, for errors."""
        return layer.path + self._stage(layer)

    def loss_label(self, last_layer: BaseLayer) -> str:
        """Returns the loss's name and stage, for errors."""
        return f"the loss{self._stage(last_layer)}"

    def location(self, layer: BaseLayer) -> str:
        """Returns the name of a layer's forward pass, for errors."""
        return f"FProp of the {type(layer).__name__} at {self.label(layer)}"

    def _stage(self, layer: BaseLayer) -> str:
        stage = self.stages.get(layer.path)
        return "" if stage is None else f" (stage {stage})"

    def _forward(
        self,
        layer: BaseLayer,
        state_dtype: tf.DType | None,
        reads: PlaceReads,
        theta: Any,
        call_context: CallContext,
        args: Any,
    ) -> Result:
        """Runs FProp. Names of sums in the result are relative to the layer's path."""
        context = self.context(call_context, root_path=layer.path)
        theta = layer.CastTheta(theta)
        inputs, loss_fn = args, self.loss_fn
        context.compute_loss = self.compute_loss
        if loss_fn is not None and self.takes_targets(layer):
            *inputs, targets = args
            context.compute_loss = lambda outputs: loss_sums(
                loss_fn, context, (outputs, targets), self.trains
            )
        with context, reads.recording(layer):
            outputs = layer.FProp(theta, *inputs)
        self._check_pure(layer, tf.compat.v1.get_default_graph())
        _check_outputs(outputs)
        outputs = as_state(outputs, state_dtype)
        if context.do_eval:
            context.accumulated.clear()  # An evaluation accumulates nothing.
        else:
            _check_all_accumulated(layer, context)
        location = self.location(layer)
        check_padding_rows_left_out(context, call_context, args, location)
        names = "accumulated", "losses", "metrics"
        sums = NestedMap({name: getattr(context, name) for name in names})
        goals = list(context.losses.values())
        return Result(outputs, sums, goals, context.local_losses)

    def _check_pure(self, layer: BaseLayer, graph: Any) -> None:
        of_state = type(layer).STATE_HINT or OF_LAYERS.of_state
        remedies = OF_LAYERS._replace(of_state=of_state)
        variables = _root(layer).VariablePaths()
        check_pure(graph, self.location(layer), variables, remedies)

    def _loss(
        self, last_layer: BaseLayer, theta: Any, call_context: CallContext, args: Any
    ) -> Result:
        assert self.loss_fn is not None
        context = self.context(call_context)
        with context:
            sums = loss_sums(self.loss_fn, context, args, self.trains)
        added = {**context.accumulated, **context.losses, **context.metric_pairs}
        if added:
            raise UserValueError(
                path="ComputeLoss",
                expected="no calls of Accumulate, AddLoss or AddMetric",
                got=sorted(added),
                hint="These calls are for layers. Return metrics instead.",
            )
        self._check_loss_pure(last_layer, tf.compat.v1.get_default_graph())
        return Result(None, NestedMap(metrics=sums), [sums.loss[0]])

    def _check_loss_pure(self, last_layer: BaseLayer, graph: Any) -> None:
        variables = _root(last_layer).VariablePaths()
        check_pure(graph, self.loss_label(last_layer), variables, OF_LOSSES)

    def _warn_of_weight(
        self,
        last_layer: BaseLayer,
        loss: Trace,
        call_context: CallContext,
        args: tuple[Any, Any],
    ) -> None:
        """Warns if the loss's weight is differentiable, because its gradient is lost.

        The sum of a micro-batch is divided by the weight of all micro-batches, which is
        known only at the end.
        """
        assert self.loss_fn is not None
        outputs = {x.op for x in loss.args[: len(present(args[0]))]}
        weight = loss.result.sums.metrics["loss"][1]
        if weight.op in dependents(loss.graph, outputs) and weight_has_gradient(
            self.loss_fn, self.context, call_context, args
        ):
            tf.get_logger().warning(
                "The weight of %s depends on the predictions. With %d micro-batches "
                "its gradient is left out, and the gradient of the mini-batch's mean "
                "is inexact. Apply tf.stop_gradient to the weights of examples.",
                self.loss_label(last_layer),
                self.num_micro_batches,
            )

    def _note_row_change(self, layer: BaseLayer, outputs: list[tf.Tensor]) -> None:
        if self.row_change or self.num_rows is None:
            return
        shapes = [x.shape for x in outputs if x.shape.rank]
        rows = [shape[row_dim(shape.rank, self.batch_dim)] for shape in shapes]
        if self.num_rows not in rows:
            self.row_change = (
                f"From {self.num_rows} rows {self.label(layer)} made "
                f"{specs_text(outputs) or 'nothing'}."
            )


def _root(layer: BaseLayer) -> BaseLayer:
    return layer if layer.parent is None else _root(layer.parent)


def _check_outputs(outputs: Any) -> None:
    wrong = [
        f"{x.dtype.name} {x.shape}" if isinstance(x, tf.Tensor) else type(x).__name__
        for x in tf.nest.flatten(outputs)
        if tf.is_tensor(x) and not _can_be_sent(x)
    ]
    if wrong:
        raise UserValueError(
            expected="dense outputs of static shape, which another device can receive",
            got=Words(", ".join(wrong)),
            hint="Pad to a static shape, or set it with tf.ensure_shape. Stack a list "
            "of tensors.",
        )


def _can_be_sent(x: Any) -> bool:
    """Returns whether another stage can receive a tensor and return its gradient."""
    is_dense = isinstance(x, tf.Tensor) and x.dtype not in REFERENCES
    return is_dense and x.shape.is_fully_defined()


def _check_all_accumulated(layer: BaseLayer, context: ForwardContext) -> None:
    registered = {context.relative_path(path) for path in accumulator_paths(layer)}
    missing = sorted(registered - set(context.accumulated))
    if missing:
        raise UserValueError(
            path=layer.path,
            expected="a value for every accumulator in each training forward pass",
            got=Words(f"none for {missing}"),
            hint="Call Accumulate, or SetValue of a Lingvo Accumulator.",
        )


def _close_functions(layer: BaseLayer) -> None:
    """Makes a traced layer, and the layers below it, reject new functions.

    The pipeline and its graphs keep the layer's trace, which would never call a
    function that is added later.
    """
    for below in layer.Descendants():
        below._functions = _ClosedFunctions(below)


class _ClosedFunctions(dict[str, Callable]):
    def __init__(self, layer: BaseLayer):
        super().__init__(layer.fns)
        self._path = layer.path

    def __setitem__(self, name: str, function: Callable) -> None:
        raise UserValueError(
            path=self._path,
            expected="AddFunction before the first run, which traces the layer",
            got=name,
            hint="To change a function later, create the layers again, or let FProp "
            "choose by an input.",
        )
