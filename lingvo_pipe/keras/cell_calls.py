"""Calls of one cell, by positions, so that alike cells share a trace.

    position   0 .. n-1   values that the cell is given
               n ..       values that its calls make, in their order

Two cells are alike if their calls would compute the same of other weights: equal
configurations apart from names, the same positions, and the same kinds of variables.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import tree

from lingvo_pipe.keras.calls import Call, Value, is_value
from lingvo_pipe.keras.cutting import Cell
from lingvo_pipe.keras.private_names import flat_layers
from lingvo_pipe.keras.state import Kind

# Layers of these packages are what their configuration says, and nothing else.
_CONFIGURED = ("keras.", "keras_hub.")


class Position(int):
    """Position of a value in a cell."""


@dataclass(frozen=True)
class LocalCall:
    """A call by positions."""

    operation: Any
    args: Any
    kwargs: Any
    num_made: int


class CellCalls:
    """The calls of a cell; a value of the cell's params.

    Attributes:
        calls: the calls.
        num_given: number of values that the cell is given.
        has_rows: for each value, whether its first dimension are the examples.
        kept: positions of the values that it passes on.
        are_outputs: for each of these, whether it is an output of the model.
        variables: the Keras variables, each once.
        kinds: their kinds.
        owned: for each variable, whether no earlier cell has it.
        earlier_draws: for each variable, a seed's draws by earlier cells of the step.
        draws: for each variable, by how much its seed moves on after a step.
        names: names of the variables in the cell, alike for alike cells.
        dtypes: dtypes of the values that it is given.
        shares_variables: whether the cell's variables are the Keras model's storage.
    """

    def __init__(
        self,
        cell: Cell,
        calls: Sequence[Call],
        values: Sequence[Value],
        outputs: Collection[int],
        variables: Sequence[keras.Variable],
        kinds: Sequence[Kind],
        owned: Sequence[bool],
        earlier_draws: Sequence[int],
        draws: Sequence[int],
        names: Sequence[str],
        shares_variables: bool,
    ):
        """Describes a cell; calls, and values by number, are the whole model's."""
        own = calls[cell.start : cell.stop]
        numbers = [*cell.given, *(made.number for call in own for made in call.made)]
        place = {number: Position(i) for i, number in enumerate(numbers)}
        self.calls = []
        for call in own:
            args, kwargs = tree.map_structure(
                lambda x: place[x.number] if is_value(x) else x,
                (call.args, call.kwargs),
            )
            self.calls.append(LocalCall(call.operation, args, kwargs, len(call.made)))
        self.num_given = len(cell.given)
        self.has_rows = [values[number].has_rows for number in numbers]
        self.kept = [place[number] for number in cell.kept]
        self.are_outputs = [number in outputs for number in cell.kept]
        self.variables = list(variables)
        self.kinds = list(kinds)
        self.owned = list(owned)
        self.earlier_draws = list(earlier_draws)
        self.draws = list(draws)
        self.names = list(names)
        self.dtypes = [tf.as_dtype(values[x].spec.dtype) for x in cell.given]
        self.shares_variables = shares_variables
        self._key = repr(
            (
                [_key(call) for call in self.calls],
                self.num_given,
                self.has_rows,
                self.kept,
                self.are_outputs,
                [(v.shape, v.dtype) for v in self.variables],
                self.kinds,
                self.owned,
                self.earlier_draws,
                self.draws,
                self.names,
                self.shares_variables,
            )
        )

    @property
    def layers(self) -> list[keras.Layer]:
        """The layers among the operations."""
        found = [call.operation for call in self.calls]
        return [x for x in found if isinstance(x, keras.Layer)]

    def __deepcopy__(self, memo: Any) -> CellCalls:
        """Returns itself: it stands for the user's layers, which are not copied."""
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CellCalls) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return f"CellCalls({', '.join(call.operation.name for call in self.calls)})"


def _key(call: LocalCall) -> Any:
    operation = call.operation
    given = tree.map_structure(_argument_key, (call.args, call.kwargs))
    own = type(operation).__module__.startswith(_CONFIGURED)
    if not own or _holds_tensors(operation):
        return id(operation), given
    try:
        config = json.dumps(operation.get_config(), default=repr, sort_keys=True)
    except (NotImplementedError, TypeError, ValueError):
        return id(operation), given
    config = re.sub(r'"name": "[^"]*"', "", config)
    return type(operation).__qualname__, config, given


def _holds_tensors(operation: Any) -> bool:
    """Returns True if layers keep values that their configuration does not say."""
    layers = flat_layers(operation) if isinstance(operation, keras.Layer) else []
    return any(
        isinstance(x, (tf.Tensor, np.ndarray)) for y in layers for x in vars(y).values()
    )


def _argument_key(x: Any) -> str:
    """Returns a text that differs for arguments that may differ."""
    simple = isinstance(x, (bool, int, float, str, complex, tf.DType))
    if x is None or simple:
        return f"{type(x).__name__} {x!r}"
    return f"object {id(x)}"
