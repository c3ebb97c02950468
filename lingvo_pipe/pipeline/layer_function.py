"""A layer's forward pass as a function that alike layers share.

It is kept out of line and takes theta as an argument, never by capture; so a hundred
equal layers are traced once, and the operations within are the same however the layers
are grouped into stages: the ground on which results do not depend on the number of
stages.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from lingvo_pipe.layers import random_streams
from lingvo_pipe.layers.base_layer import BaseLayer
from lingvo_pipe.layers.forward_context import ForwardContext
from lingvo_pipe.pipeline.purity import check_pure

OUT_OF_LINE = {"autograph": False, "experimental_attributes": {"_noinline": True}}

# What a layer raises that was given what it can't take.
_FAULTS = (AttributeError, TypeError, ValueError)


class LayerFunctions:
    """The functions of a model's layers in training or in evaluation."""

    def __init__(self, do_eval: bool):
        self.do_eval = do_eval
        self._known: list[tuple[Any, Callable]] = []

    def __getitem__(self, layer: BaseLayer) -> Callable:
        """The function `(theta, step, first_example, *args)` of a layer.

        It returns the layer's outputs and a dict of accumulated sums by path.
        """
        return functools.partial(_call, layer, self._shared(layer))

    def _shared(self, layer: BaseLayer) -> Callable:
        identity = _identity(layer)
        for known, function in self._known:
            if known == identity:
                return function
        function = _make(layer, self.do_eval)
        self._known.append((identity, function))
        return function


def _identity(layer: BaseLayer) -> Any:
    """What decides on a layer's forward pass: equal for layers that may share one."""
    functions = [d.fns for d in layer.Descendants() if d.fns]
    return layer.params.Copy().Set(name=""), functions


def _make(layer: BaseLayer, do_eval: bool) -> Callable:
    """What alike layers share; in its results paths are relative to the layer."""

    def forward(
        theta: Any, path_hash: tf.Tensor, step: Any, first_example: Any, *args: Any
    ) -> Any:
        context = ForwardContext(
            do_eval=do_eval,
            step=step,
            first_example=first_example,
            root_path=layer.path,
            root_hash=path_hash,
        )
        with context:
            outputs = layer.FProp(layer.CastTheta(theta), *args)
        graph = tf.compat.v1.get_default_graph()
        check_pure(graph, _where(layer), root(layer).VariablePaths())
        _check_outputs(outputs)
        return outputs, _accumulated(layer, context)

    return tf.function(forward, **OUT_OF_LINE)


def _call(
    layer: BaseLayer,
    shared: Callable,
    theta: Any,
    step: Any,
    first_example: Any,
    *args: Any,
) -> tuple[Any, dict[str, tf.Tensor]]:
    """Calls the function that `layer` shares, as this layer."""
    path_hash = tf.constant(random_streams.path_hash(layer.path), tf.uint64)
    with _named_errors(layer, args):
        outputs, sums = shared(theta, path_hash, step, first_example, *args)
    return outputs, {f"{layer.path}/{name}": value for name, value in sums.items()}


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
    return context.accumulated


def accumulator_paths(layer: BaseLayer) -> Iterator[str]:
    """Paths of all accumulators below a layer."""
    for descendant in layer.Descendants():
        for name in descendant.own_accumulators:
            yield f"{descendant.path}/{name}"


def root(layer: BaseLayer) -> BaseLayer:
    """The layer at the top of the tree that `layer` is in."""
    return layer if layer.parent is None else root(layer.parent)
