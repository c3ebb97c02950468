"""The calls that a Keras model consists of, in the order in which Keras makes them.

    Sequential([Dense, Block])      Dense   x
    Block = Model(add(norm(x), x))  norm    y = Dense(x)
                                    add     z = norm(y), y

Sequential and functional models inside a model are replaced by their own calls.
The calls are cut into cells, whatever the number of stages:

    calls        a   b   c   d   e          a call with a kernel starts a cell;
    kernels      *   .   *   .   .          the others join the cell before them
                '--.--' '----.----'
    cells          0         1
    passed on     b,a        e              what later cells, or the model, still need
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import keras
from keras import tree

from lingvo_pipe.keras.private_names import graph_of, is_graph, nodes_in_order


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor of the graph."""

    number: int  # Its number in the model; inputs come first.
    spec: keras.KerasTensor  # Its shape and dtype.

    @property
    def has_rows(self) -> bool:
        """True if the first dimension are the examples."""
        return self.row_axis == 0

    @property
    def row_axis(self) -> int | None:
        """The dimension that are the examples: the first one of unknown size."""
        shape = list(self.spec.shape)
        return shape.index(None) if None in shape else None


@dataclass(frozen=True)
class Call:
    """One call of a layer or another operation."""

    operation: Any
    args: tuple[Any, ...]  # Its arguments; a tensor is a `Value`.
    kwargs: dict[str, Any]
    made: tuple[Value, ...]  # Its outputs, flat.

    @property
    def taken(self) -> list[Value]:
        """The tensors among its arguments."""
        return [
            x for x in tree.flatten((self.args, self.kwargs)) if isinstance(x, Value)
        ]

    @property
    def variables(self) -> list[keras.Variable]:
        """The variables of its layer, random seeds included."""
        return list(getattr(self.operation, "variables", ()))

    @property
    def has_kernel(self) -> bool:
        """True if its layer has a trained weight of two or more dimensions."""
        return any(len(v.shape) > 1 for v in getattr(self.operation, "weights", ()))


@dataclass(frozen=True)
class Calls:
    """All calls of a model, with its inputs and outputs, flat."""

    inputs: tuple[Value, ...]
    calls: tuple[Call, ...]
    outputs: tuple[Value, ...]


def calls_of(model: keras.Model) -> Calls:
    """Returns the calls of a Sequential or functional model."""
    numbers = itertools.count()
    graph = graph_of(model)
    inputs = tuple(Value(next(numbers), x) for x in graph.inputs)
    calls: list[Call] = []
    outputs = _collect(graph, inputs, numbers, calls)
    return Calls(inputs, tuple(calls), tuple(outputs))


def _collect(
    model: keras.Model,
    inputs: tuple[Value, ...],
    numbers: Iterator[int],
    calls: list[Call],
) -> list[Value]:
    graph = graph_of(model)
    values_by_id = dict(zip(map(id, graph.inputs), inputs, strict=True))
    for node in nodes_in_order(graph):
        if any(id(x) not in values_by_id for x in node.input_tensors):
            continue  # Keras skips it as well: another graph's call of a shared layer.
        args, kwargs = _filled(node, values_by_id)
        if is_graph(node.operation):
            block_inputs = tuple(
                x for x in tree.flatten((args, kwargs)) if isinstance(x, Value)
            )
            outputs = _collect(node.operation, block_inputs, numbers, calls)
        else:
            outputs = [Value(next(numbers), x) for x in node.outputs]
            calls.append(Call(node.operation, args, kwargs, tuple(outputs)))
        values_by_id.update(zip(map(id, node.outputs), outputs, strict=True))
    return [values_by_id[id(x)] for x in graph.outputs]


def _filled(node: Any, values_by_id: Mapping[int, Value]) -> tuple[Any, Any]:
    """Returns a node's arguments with values in place of its symbolic tensors."""
    arguments = node.arguments
    args, kwargs = tree.map_structure(
        lambda x: values_by_id[id(x)] if isinstance(x, keras.KerasTensor) else x,
        (arguments.args, arguments.kwargs),
    )
    return tuple(args), dict(kwargs)


class Step(NamedTuple):
    """A call for cutting: numbers of its values, and whether it starts a cell."""

    takes: Sequence[int]
    makes: Sequence[int]
    starts_cell: bool


class Cell(NamedTuple):
    """Consecutive calls, with the values that enter and leave by position."""

    start: int  # The calls, as a range of indices.
    stop: int
    given: tuple[int, ...]  # Numbers of the values that the cell is given.
    kept: tuple[int, ...]  # Numbers of the values that it passes on.


def cut(
    inputs: Sequence[int], steps: Sequence[Step], outputs: Sequence[int]
) -> list[Cell]:
    """Returns the cells of a graph, which pass values on until their last use."""
    starts = [i for i, step in enumerate(steps) if step.starts_cell or i == 0]
    # Cheap calls before the first kernel belong to its cell.
    if len(starts) > 1 and not steps[0].starts_cell:
        del starts[1]
    stops = [*starts[1:], len(steps)]
    last_use = {number: i for i, step in enumerate(steps) for number in step.takes}
    last_use.update(dict.fromkeys(outputs, len(steps)))
    cells, live = [], tuple(inputs)
    for start, stop in zip(starts, stops, strict=True):
        computed = [number for step in steps[start:stop] for number in step.makes]
        kept = tuple(x for x in (*live, *computed) if last_use.get(x, -1) >= stop)
        if stop == len(steps):
            kept = tuple(outputs)
        cells.append(Cell(start, stop, live, kept))
        live = kept
    return cells
