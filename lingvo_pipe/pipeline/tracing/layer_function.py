"""A layer's forward pass as a function that alike layers share.

It is kept out of line and takes theta as an argument, never by capture; so a hundred
equal layers are traced once, and the operations within are the same however the layers
are grouped into stages: the ground on which results do not depend on the number of
stages.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from lingvo_pipe.layers.base_layer import BaseLayer
from lingvo_pipe.layers.forward_context import ForwardContext
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.optional_nest import map_present
from lingvo_pipe.pipeline.tracing.purity import check_pure
from lingvo_pipe.pipeline.tracing.trace import Result, Surroundings, Trace

# What a layer raises that was given what it can't take.
_FAULTS = (AttributeError, TypeError, ValueError)


class LayerFunctions:
    """The traces of a model's layers, in training or in evaluation."""

    def __init__(
        self,
        do_eval: bool,
        trains: bool,
        batch_dim: int = 0,
        state_dtype: tf.DType | None = None,
    ):
        """Initialises the functions.

        Args:
            do_eval: whether layers run in evaluation.
            trains: whether they are differentiated.
            batch_dim: see `ForwardContext`.
            state_dtype: of the floating tensors that layers hand on to others; None:
                as they return them.
        """
        self.do_eval = do_eval
        self.trains = trains
        self.batch_dim = batch_dim
        self.state_dtype = state_dtype
        self._known: list[tuple[Any, Trace]] = []

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
            root_path=root_path,
            root_hash=surroundings.path_hash,
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
        dtype = None if is_last else self.state_dtype
        identity = *_identity(layer), repr((theta, surroundings, args, dtype))
        for known, trace in self._known:
            if known == identity:
                return trace
        with _named_errors(layer, args):
            trace = Trace(
                functools.partial(_forward, layer, self, dtype),
                theta,
                [variable.trainable for variable in tf.nest.flatten(layer.vars)],
                surroundings,
                args,
                self.trains,
            )
        self._known.append((identity, trace))
        return trace


def _identity(layer: BaseLayer) -> tuple:
    """What decides on a layer's forward pass: equal for layers that may share one."""
    functions = [d.fns for d in layer.Descendants() if d.fns]
    return layer.params.Copy().Set(name=""), functions


def _forward(
    layer: BaseLayer,
    functions: LayerFunctions,
    state_dtype: tf.DType | None,
    theta: Any,
    surroundings: Surroundings,
    args: Any,
) -> Result:
    """What alike layers share; in its results paths are relative to the layer."""
    context = functions.context(surroundings, root_path=layer.path)
    with context:
        outputs = layer.FProp(layer.CastTheta(theta), *args)
    graph = tf.compat.v1.get_default_graph()
    check_pure(graph, _where(layer), root(layer).VariablePaths())
    _check_outputs(outputs)
    if state_dtype is not None:
        outputs = map_present(lambda x: _as_state(x, state_dtype), outputs)
    sums = NestedMap(
        accumulated=_accumulated(layer, context),
        losses=context.losses,
        metrics=context.metrics,
    )
    return Result(outputs, sums, list(context.losses.values()))


def _as_state(x: Any, dtype: tf.DType) -> tf.Tensor:
    x = tf.convert_to_tensor(x)
    return tf.cast(x, dtype) if x.dtype.is_floating else x


def _where(layer: BaseLayer) -> str:
    return f"FProp of the {type(layer).__name__} at {layer.path}"


@contextlib.contextmanager
def _named_errors(layer: BaseLayer, args: Any) -> Iterator[None]:
    """Says in an error which layer it was and what came in, unless it does."""
    try:
        yield
    except _FAULTS as error:
        if layer.path in str(error):
            raise
        given = ", ".join(
            f"{x.dtype.name} {x.shape}" for x in tf.nest.flatten(args) if x is not None
        )
        kind = next(kind for kind in _FAULTS if isinstance(error, kind))
        raise kind(f"{_where(layer)}, given {given or 'nothing'}: {error}") from error


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
            "What a cell hands on must be dense tensors of static shape, for it may "
            f"cross to another device; it returned {', '.join(wrong)}. Pad to a "
            "static shape, or state it by tf.ensure_shape."
        )


def _is_dense_and_static(x: Any) -> bool:
    return isinstance(x, tf.Tensor) and x.shape.is_fully_defined()


def _accumulated(layer: BaseLayer, context: ForwardContext) -> dict[str, tf.Tensor]:
    if context.do_eval:
        return {}
    registered = {context.relative_path(path) for path in accumulator_paths(layer)}
    missing = sorted(registered - set(context.accumulated))
    if missing:
        raise ValueError(
            "Every registered accumulator must be given its share in each training "
            f"forward pass; {layer.path} was not given {missing}. Call Accumulate."
        )
    if context.accumulated and not context.regards_examples:
        raise ValueError(
            "Where M does not divide the mini-batch, micro-batches have rows that are "
            f"no examples, and accumulators must leave them out; {layer.path} did not "
            "ask which they are. Multiply by ForwardContext.row_weights, or choose a "
            "mini-batch that is a multiple of num_micro_batches."
        )
    return context.accumulated


def accumulator_paths(layer: BaseLayer) -> Iterator[str]:
    """Paths of all accumulators below a layer."""
    for descendant in layer.Descendants():
        for name in descendant.own_accumulators:
            yield f"{descendant.path}/{name}"


def root(layer: BaseLayer) -> BaseLayer:
    """The layer at the top of the tree that `layer` is in."""
    return layer if layer.parent is None else root(layer.parent)
