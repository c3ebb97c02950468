"""Size of a model from only its Params: parameters and multiply-adds.

Variables are declared and not created, so the count is quick for a model of any size.
The multiply-adds of a forward pass come from its graph, which is traced and not run.
Equal layers are measured once.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from lingvo_pipe.core.nests import map_present, spec_of
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.layers.sequential import as_args


class LayerSize(NamedTuple):
    """The size of one layer and the layers below it."""

    num_parameters: int  # trained
    multiply_adds: int  # in convolutions and matrix products of an evaluation


def parameter_counts(layers: Sequence[InstantiableParams]) -> list[int]:
    """Returns the number of trained parameters of each layer."""
    count = _cached(_parameter_count)
    return [count(p.Copy().Set(name="")) for p in layers]


def trained_paths(layer: InstantiableParams) -> list[str]:
    """Returns the paths, below the layer, of the trained parameters."""
    with _declared(layer) as declared:
        return [
            path.removeprefix(f"{declared.path}/")
            for path, variable in declared.VariablePaths().items()
            if variable.trainable
        ]


def layer_sizes(layers: Sequence[InstantiableParams], *inputs: Any) -> list[LayerSize]:
    """Returns the sizes of layers that each take the outputs of the previous layer.

    Operations in loops and branches of the graph are not counted. The first layer's
    inputs are structures of tf.TensorSpec, all dimensions known, or None.
    """
    measure = _cached(_measured)
    sizes = []
    for p in layers:
        size, inputs = measure(p.Copy().Set(name=""), inputs)
        sizes.append(size)
    return sizes


def _parameter_count(p: InstantiableParams) -> int:
    with _declared(p) as layer:
        return num_parameters(layer)


def _measured(p: InstantiableParams, inputs: Any) -> tuple[LayerSize, Any]:
    """Returns the layer's size, and specs of its outputs."""
    with _declared(p) as layer, ForwardContext(do_eval=True):
        theta = layer.CastTheta(tf.nest.map_structure(_placeholder, layer.vars))
        outputs = as_args(layer.FProp(theta, *map_present(_placeholder, inputs)))
        operations = tf.compat.v1.get_default_graph().get_operations()
        size = LayerSize(num_parameters(layer), sum(map(multiply_adds, operations)))
        return size, map_present(spec_of, outputs)


def _cached(function: Callable) -> Callable:
    """Runs the function once for equal arguments, which can't be hashed."""
    results: list[tuple[tuple, Any]] = []

    def cached(*args: Any) -> Any:
        for earlier_args, result in results:
            if earlier_args == args:
                return result
        results.append((args, function(*args)))
        return results[-1][1]

    return cached


class _DeclaredVariable:
    """A variable that is declared and not created."""

    def __init__(self, shape: Any, dtype: tf.DType, trainable: bool):
        self.shape = tf.TensorShape(shape)
        self.dtype = tf.as_dtype(dtype)
        self.trainable = trainable

    def ref(self) -> _DeclaredVariable:
        """Returns itself, as a key."""
        return self


@contextlib.contextmanager
def _declared(p: InstantiableParams) -> Iterator[BaseLayer]:
    """Yields the layer in a scratch graph, its variables declared only."""

    def declare(next_creator: Any, **kwargs: Any) -> Any:
        return _DeclaredVariable(kwargs["shape"], kwargs["dtype"], kwargs["trainable"])

    with tf.Graph().as_default(), tf.variable_creator_scope(declare):
        yield p.Copy().Set(name="layer").Instantiate()


def num_parameters(layer: BaseLayer) -> int:
    """Returns the number of a layer's trained parameters."""
    variables = layer.VariablePaths().values()
    return sum(math.prod(v.shape) for v in variables if v.trainable)


def graph_flops(graph: tf.Graph) -> int:
    """Returns the flops of a graph's operations.

    Elementwise operations take one flop for each element. Loops and branches count
    once, as their first output.
    """
    return sum(
        max(2 * multiply_adds(op), math.prod(op.outputs[0].shape))
        for op in graph.get_operations()
        if op.inputs and op.outputs and op.outputs[0].shape.is_fully_defined()
    )


def _placeholder(like: Any) -> tf.Tensor:
    return tf.compat.v1.placeholder(like.dtype, like.shape)


def multiply_adds(op: tf.Operation) -> int:
    """Returns the multiply-adds of a product or convolution, 0 for others."""
    if op.type not in _PRODUCTS_PER_ELEMENT:
        return 0
    return _PRODUCTS_PER_ELEMENT[op.type](op) * math.prod(op.outputs[0].shape)


def _summed(op: tf.Operation) -> list[int]:
    """Returns the sizes of the dimensions that an einsum sums over."""
    input_labels, output_labels = op.get_attr("equation").decode().split("->")
    sizes: dict[str, int] = {}
    for labels, x in zip(input_labels.split(","), op.inputs, strict=True):
        first, _, last = labels.partition("...")
        sizes.update(zip(first, x.shape, strict=False))
        sizes.update(zip(reversed(last), reversed(x.shape), strict=False))
    return [size for label, size in sizes.items() if label not in output_labels]


# Products summed for each element of the output.
_PRODUCTS_PER_ELEMENT = {
    "Conv2D": lambda op: math.prod(op.inputs[1].shape[:3]),
    "DepthwiseConv2dNative": lambda op: math.prod(op.inputs[1].shape[:2]),
    "MatMul": lambda op: op.inputs[0].shape[0 if op.get_attr("transpose_a") else 1],
    **dict.fromkeys(
        ("BatchMatMul", "BatchMatMulV2"),
        lambda op: op.inputs[0].shape[-2 if op.get_attr("adj_x") else -1],
    ),
    "Einsum": lambda op: math.prod(_summed(op)),
}
