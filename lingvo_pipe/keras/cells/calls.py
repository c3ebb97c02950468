"""The calls that a Keras model consists of, in the order in which Keras makes them.

    model                           calls   inputs
    Sequential([Dense, Block])      Dense   x
    Block = Model(add(norm(y), y))  norm    y = Dense(x)
                                    add     z = norm(y), y

Sequential and functional models inside a model are replaced by their own calls. Where
such a model casts its inputs, changes their rank or gets a mask, a call of a `Boundary`
comes first.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf
from keras import tree

from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.keras.cells.private_names import (
    Functional,
    get_mask,
    graph_of,
    is_graph,
    nodes_in_order,
    rounded_inputs,
    rounds,
    set_mask,
    standardized_inputs,
)


@dataclass(frozen=True, eq=False)
class GraphTensor:
    """A tensor of a model's graph."""

    number: int  # Its number in the model; inputs come first.
    spec: keras.KerasTensor  # Its shape and dtype.

    @property
    def has_rows(self) -> bool:
        """True if the first dimension counts examples."""
        return self.row_axis == 0

    @property
    def row_axis(self) -> int | None:
        """The index of the dimension of examples: the first one of unknown size."""
        shape = list(self.spec.shape)
        return shape.index(None) if None in shape else None


@dataclass(frozen=True)
class KerasCall:
    """One call of a layer or another operation."""

    operation: Any
    args: tuple[Any, ...]  # Its arguments; a tensor is a `GraphTensor`.
    kwargs: dict[str, Any]
    made: tuple[GraphTensor, ...]  # Its outputs, flat.
    models: tuple[keras.Model, ...] = ()  # Those around it, the outermost first.

    @property
    def taken(self) -> list[GraphTensor]:
        """The tensors among the call's arguments."""
        return tensors_in((self.args, self.kwargs))

    @property
    def variables(self) -> list[keras.Variable]:
        """The variables of the layer, random seeds included."""
        return list(getattr(self.operation, "variables", ()))

    @property
    def has_kernel(self) -> bool:
        """True if the layer has a weight of two or more dimensions."""
        return any(len(v.shape) > 1 for v in getattr(self.operation, "weights", ()))

    def arguments(self, value_of: Callable[[GraphTensor], Any]) -> Any:
        """Returns args and kwargs with values in place of tensors."""
        return tree.map_structure(
            lambda x: value_of(x) if isinstance(x, GraphTensor) else x,
            (self.args, self.kwargs),
        )


@dataclass(frozen=True)
class ModelCalls:
    """All calls of a model, with its inputs and outputs, flat."""

    inputs: tuple[GraphTensor, ...]
    calls: tuple[KerasCall, ...]
    outputs: tuple[GraphTensor, ...]


def calls_of(model: keras.Model) -> ModelCalls:
    """Returns the calls of a Sequential or functional model."""
    numbers = itertools.count()
    graph = graph_of(model)
    inputs = tuple(GraphTensor(next(numbers), x) for x in graph.inputs)
    calls: list[KerasCall] = []
    outputs = _collect((model,), inputs, numbers, calls)
    return ModelCalls(inputs, tuple(calls), tuple(outputs))


def tensors_in(arguments: Any) -> list[GraphTensor]:
    """Returns the tensors in nested arguments."""
    return [x for x in tree.flatten(arguments) if isinstance(x, GraphTensor)]


def _collect(
    models: tuple[keras.Model, ...],
    inputs: Iterable[GraphTensor],
    numbers: Iterator[int],
    calls: list[KerasCall],
) -> list[GraphTensor]:
    """Appends the calls of the last model to `calls`, and returns its outputs."""
    graph = graph_of(models[-1])
    tensors = dict(zip(map(id, graph.inputs), inputs, strict=True))
    for node in nodes_in_order(graph):
        if any(id(x) not in tensors for x in node.input_tensors):
            continue  # Keras skips it as well: another graph's call of a shared layer.
        args, kwargs = tree.map_structure(
            lambda x: tensors[id(x)] if isinstance(x, keras.KerasTensor) else x,
            (node.arguments.args, node.arguments.kwargs),
        )
        if is_graph(node.operation):
            _check_graph(node.operation, kwargs)
            inner, mask = node.operation, kwargs.get("mask")
            block_inputs = _inputs_of(graph_of(inner), *args, **kwargs)
            if _has_boundary(inner, block_inputs, mask):
                boundary = _boundary_call(inner, block_inputs, mask, numbers)
                calls.append(boundary)
                block_inputs = list(boundary.made)
            outputs = _collect((*models, inner), block_inputs, numbers, calls)
        else:
            outputs = [GraphTensor(next(numbers), x) for x in node.outputs]
            call = KerasCall(node.operation, args, kwargs, tuple(outputs), models)
            calls.append(call)
        tensors.update(zip(map(id, node.outputs), outputs, strict=True))
    return [tensors[id(x)] for x in graph.outputs]


def _check_graph(model: keras.Model, options: Iterable[str]) -> None:
    path = f"model {model.name!r}"
    # Keras replaces its `training` by the outer model's.
    if left_out := sorted({*options} - {"inputs", "mask", "training"}):
        raise UserValueError(
            path=path,
            expected="calls of models within by inputs, mask and training alone",
            got=left_out,
            hint="Set it as an attribute of the layers that take it.",
        )
    if graph_of(model) is None:
        raise UserValueError(
            path=path,
            expected="a model within that Keras can trace, of one input",
            got=Words("a Sequential model without a graph"),
            hint="Write it as keras.Model(inputs, outputs).",
        )


class Boundary(keras.Operation):
    """The casts, changes of rank and masks that a model applies to its inputs."""

    def __init__(self, model: keras.Model) -> None:
        super().__init__(name=f"inputs_of_{model.name}")
        self._model, self._graph = model, graph_of(model)

    def call(self, inputs: Sequence[Any], mask: Any = None) -> list[Any]:
        """Returns inputs, in order, as the model's layers take them."""
        masks = list(map(get_mask, inputs)) if mask is None else tree.flatten(mask)
        structure = tree.pack_sequence_as(self._graph.input, inputs)
        rounded = rounded_inputs(self._model, structure)
        outputs = standardized_inputs(self._graph, rounded)
        for i, part in enumerate(masks):
            if part is not None:
                outputs[i] = tf.identity(outputs[i])
                set_mask(outputs[i], part)
        return outputs


def _inputs_of(
    graph: Functional, inputs: Any, **unused_options: Any
) -> list[GraphTensor]:
    """Returns inputs in the model's order. Names decide for a dict, as in Keras."""
    if isinstance(inputs, dict) and not isinstance(graph.input, dict):
        return [inputs[x.name] for x in graph.inputs]
    return tree.flatten(inputs)[: len(graph.inputs)]


def _boundary_call(
    model: keras.Model,
    inputs: Sequence[GraphTensor],
    mask: Any,
    numbers: Iterator[int],
) -> KerasCall:
    specs = [
        keras.KerasTensor(
            (x.spec if len(x.spec.shape) == len(y.shape) else y).shape, y.dtype
        )
        for x, y in zip(inputs, graph_of(model).inputs, strict=True)
    ]
    outputs = tuple(GraphTensor(next(numbers), spec) for spec in specs)
    return KerasCall(Boundary(model), (inputs,), {"mask": mask}, outputs)


def _has_boundary(model: keras.Model, inputs: Sequence[GraphTensor], mask: Any) -> bool:
    has_mask = any(isinstance(x, GraphTensor) for x in tree.flatten(mask))
    return has_mask or any(
        x.spec.dtype != y.dtype
        or len(x.spec.shape) != len(y.shape)
        or rounds(model, y.dtype)
        for x, y in zip(inputs, graph_of(model).inputs, strict=True)
    )
