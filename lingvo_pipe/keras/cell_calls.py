"""Calls of one cell, by positions, so that alike cells share a trace.

    position   0 .. n-1   values that the cell is given
               n ..       values that its calls make, in their order

Cells are alike if their configurations apart from names, positions and kinds of
variables are equal.
"""

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from keras import tree

from lingvo_pipe.keras.calls import Call, Cell, Value
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


class CellVariable(NamedTuple):
    """A Keras variable in a cell."""

    variable: keras.Variable
    name: str  # Its name in the cell, alike for alike cells.
    kind: Kind
    owned: bool  # True if no earlier cell has it.
    # A seed's draws by earlier cells of the step, in training (True) or not.
    earlier_draws: dict[bool, int]
    draws: dict[bool, int]  # By how much its seed moves on after a step.


@dataclass(eq=False, repr=False)
class CellCalls:
    """The calls of a cell; a value of the cell's params."""

    calls: list[LocalCall]
    num_given: int  # Number of values that the cell is given.
    # For each value, whether its first dimension are the examples.
    has_rows: list[bool]
    kept: list[Position]  # Positions of the values that it passes on.
    are_outputs: list[bool]  # For each of these, whether it is an output of the model.
    dtypes: list[tf.DType]  # Dtypes of the values that it is given.
    variables: list[CellVariable]  # The variables, each once.
    # Whether the cell's variables are the Keras model's storage.
    shares_variables: bool

    def __post_init__(self) -> None:
        alike = {
            **vars(self),
            "calls": [_key(call) for call in self.calls],
            "variables": [(v.shape, v.dtype, *rules) for v, *rules in self.variables],
            "dtypes": None,
        }
        self._key = repr(alike)

    def __deepcopy__(self, memo: Any) -> "CellCalls":
        """Returns itself: it stands for the user's layers, which are not copied."""
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CellCalls) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return f"CellCalls({', '.join(call.operation.name for call in self.calls)})"


def local_values(
    cell: Cell, own: Sequence[Call], values: Sequence[Value], outputs: Collection[int]
) -> dict[str, Any]:
    """Returns the fields of `CellCalls` that describe a cell's calls and values."""
    numbers = [*cell.given, *(made.number for call in own for made in call.made)]
    place = {number: Position(i) for i, number in enumerate(numbers)}

    def local(x: Any) -> Any:
        return place[x.number] if isinstance(x, Value) else x

    return {
        "calls": [
            LocalCall(
                call.operation,
                tree.map_structure(local, call.args),
                tree.map_structure(local, call.kwargs),
                len(call.made),
            )
            for call in own
        ],
        "num_given": len(cell.given),
        "has_rows": [values[number].has_rows for number in numbers],
        "kept": [place[number] for number in cell.kept],
        "are_outputs": [number in outputs for number in cell.kept],
        "dtypes": [tf.as_dtype(values[x].spec.dtype) for x in cell.given],
    }


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
    if x is None or isinstance(x, (bool, int, float, str, complex, tf.DType)):
        return f"{type(x).__name__} {x!r}"
    return f"object {id(x)}"
