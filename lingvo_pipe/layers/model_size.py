"""How large a model is, from its Params alone: parameters and multiply-adds.

Variables are declared and not created, so a model of any size is counted at once. What
a forward pass multiplies is read off its graph, which is traced and not run. Layers
that are alike are looked at once.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.base_layer import BaseLayer
from lingvo_pipe.layers.forward_context import ForwardContext
from lingvo_pipe.layers.sequential import as_args
from lingvo_pipe.optional_nest import map_present, spec_of


class LayerSize(NamedTuple):
    """Of one layer and what is below it.

    Attributes:
        num_parameters: that are trained.
        multiply_adds: of convolutions and matrix products in an evaluation.
    """

    num_parameters: int
    multiply_adds: int


def parameter_counts(layers: Sequence[InstantiableParams]) -> list[int]:
    """The number of trained parameters of each layer."""
    count = _remembering(_parameter_count)
    return [count(_nameless(p)) for p in layers]


def trained_paths(layer: InstantiableParams) -> list[str]:
    """The paths, below the layer, of the parameters that are trained."""
    with _declared(layer) as declared:
        return [
            path.removeprefix(f"{declared.path}/")
            for path, variable in declared.VariablePaths().items()
            if variable.trainable
        ]


def layer_sizes(layers: Sequence[InstantiableParams], *inputs: Any) -> list[LayerSize]:
    """The sizes of layers that each take what the one before hands on.

    What runs in loops and branches of the graph is not counted.

    Args:
        layers: their params.
        *inputs: specs of the first one's inputs, all dimensions known: tf.TensorSpec,
            None, or structures of these.
    """
    measure = _remembering(_measured)
    sizes = []
    for p in layers:
        size, inputs = measure(_nameless(p), inputs)
        sizes.append(size)
    return sizes


def _parameter_count(p: InstantiableParams) -> int:
    with _declared(p) as layer:
        return _num_parameters(layer)


def _measured(p: InstantiableParams, inputs: Any) -> tuple[LayerSize, Any]:
    """The layer's size, and specs of its outputs."""
    with _declared(p) as layer, ForwardContext(do_eval=True):
        theta = layer.CastTheta(tf.nest.map_structure(_placeholder, layer.vars))
        outputs = as_args(layer.FProp(theta, *map_present(_placeholder, inputs)))
        operations = tf.compat.v1.get_default_graph().get_operations()
        size = LayerSize(_num_parameters(layer), sum(map(_multiply_adds, operations)))
        return size, map_present(spec_of, outputs)


def _remembering(function: Callable) -> Callable:
    """The function, run once for arguments that are equal; they can't be hashed."""
    known: list[tuple[tuple, Any]] = []

    def remembered(*args: Any) -> Any:
        for other, result in known:
            if other == args:
                return result
        known.append((args, function(*args)))
        return known[-1][1]

    return remembered


class _DeclaredVariable:
    """What is known of a variable that is not created."""

    def __init__(self, shape: Any, dtype: tf.DType, trainable: bool):
        self.shape = tf.TensorShape(shape)
        self.dtype = tf.as_dtype(dtype)
        self.trainable = trainable

    def ref(self) -> _DeclaredVariable:
        """A key: itself."""
        return self


def _declare(next_creator: Any, **kwargs: Any) -> Any:
    return _DeclaredVariable(kwargs["shape"], kwargs["dtype"], kwargs["trainable"])


@contextlib.contextmanager
def _declared(p: InstantiableParams) -> Iterator[BaseLayer]:
    """The layer in a scratch graph, its variables declared only."""
    with tf.Graph().as_default(), tf.variable_creator_scope(_declare):
        yield p.Copy().Set(name="layer").Instantiate()


def _nameless(p: InstantiableParams) -> InstantiableParams:
    return p.Copy().Set(name="")


def _num_parameters(layer: BaseLayer) -> int:
    variables = layer.VariablePaths().values()
    return sum(math.prod(v.shape) for v in variables if v.trainable)


def _placeholder(like: Any) -> tf.Tensor:
    return tf.compat.v1.placeholder(like.dtype, like.shape)


def _multiply_adds(op: tf.Operation) -> int:
    """How many products the operation adds up."""
    if op.type not in _PRODUCTS_AN_ELEMENT:
        return 0
    return _PRODUCTS_AN_ELEMENT[op.type](op) * math.prod(op.outputs[0].shape)


# For each element of the output.
_PRODUCTS_AN_ELEMENT = {
    "Conv2D": lambda op: math.prod(op.inputs[1].shape[:3]),
    "DepthwiseConv2dNative": lambda op: math.prod(op.inputs[1].shape[:2]),
    "MatMul": lambda op: op.inputs[0].shape[0 if op.get_attr("transpose_a") else 1],
    "BatchMatMulV2": lambda op: op.inputs[0].shape[-2 if op.get_attr("adj_x") else -1],
}
