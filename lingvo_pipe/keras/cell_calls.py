"""Calls of one cell, by positions, so that alike cells share a trace.

    position   0 .. n-1   values that the cell is given
               n ..       values that its calls make, in their order

Cells are alike if they make equal calls, apart from names, with variables of equal
shapes and kinds. Calls of two layers are equal if Keras's own code and the layers'
configurations alone determine them; other layers are equal only to themselves. The
pipeline still lets them share a trace if it finds equal graphs.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from keras import tree

from lingvo_pipe.keras.calls import Call, Cell, Value
from lingvo_pipe.keras.private_names import flat_layers
from lingvo_pipe.keras.state import Kind

# Values of a configuration that mean what they say.
_PLAIN = (type(None), bool, int, float, str)


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
    arguments = tree.map_structure(_argument_key, (call.args, call.kwargs))
    settings = _settings(operation)
    if settings is None:
        return id(operation), arguments
    return type(operation).__qualname__, settings, arguments


def _settings(operation: Any) -> str | None:
    """Returns the settings of an operation if it depends on nothing else, or None."""
    layers = flat_layers(operation) if isinstance(operation, keras.Layer) else []
    if not all(map(_is_by_keras, [operation, *layers])):
        return None
    try:
        return json.dumps(_plain(operation.get_config()), sort_keys=True)
    except Exception:  # Whatever a configuration raises.
        return None


def _is_by_keras(operation: Any) -> bool:
    """Returns True if an operation holds no tensors, and runs code of Keras alone."""
    values = tree.flatten(list(vars(operation).values()))
    code = [type(operation), *(x for x in values if callable(x))]
    return not any(isinstance(x, (tf.Tensor, np.ndarray)) for x in values) and all(
        str(x.__module__).startswith("keras.") for x in code
    )


def _plain(config: Any, keeps_names: bool = False) -> Any:
    """Returns a configuration without the names of layers.

    Raises TypeError if it holds anything but numbers, texts and objects of Keras.
    """
    if isinstance(config, (list, tuple)):
        return [_plain(x) for x in config]
    if isinstance(config, Mapping):
        if not str(config.get("module", "keras")).startswith("keras"):
            raise TypeError(f"{config} is not of Keras")
        # A policy's name is what it does.
        is_policy = "DTypePolicy" in str(config.get("class_name"))
        return {
            key: _plain(value, keeps_names=is_policy)
            for key, value in config.items()
            if keeps_names or key != "name"
        }
    if not isinstance(config, _PLAIN):
        raise TypeError(f"{config!r} is no setting")
    return config


def _argument_key(x: Any) -> str:
    """Returns a text that differs for arguments that may differ."""
    if x is None or isinstance(x, (bool, int, float, str, complex, tf.DType)):
        return f"{type(x).__name__} {x!r}"
    return f"object {id(x)}"
