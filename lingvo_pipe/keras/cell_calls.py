"""Calls of one cell, by positions.

    position   0 .. n-1   values that the cell is given
               n ..       values that its calls make, in their order

No two cells are equal: a configuration may leave out functions, tensors and settings,
so it does not tell whether layers compute the same. The pipeline compares traced graphs
instead, and identical ones share a trace.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import keras
import tensorflow as tf
from keras import tree

from lingvo_pipe.keras.calls import Call, Cell, Value
from lingvo_pipe.keras.state import Draws, Kind


class Position(int):
    """Position of a value in a cell."""


@dataclass(frozen=True)
class LocalCall:
    """A call by positions."""

    operation: Any
    args: Any
    kwargs: Any
    num_made: int
    # For training (True) or not, whether each of its draws belongs to the rows.
    draws: dict[bool, tuple[bool, ...]]


class CellVariable(NamedTuple):
    """A Keras variable in a cell."""

    variable: keras.Variable
    name: str  # Its name in the cell.
    kind: Kind
    owned: bool  # True if no earlier cell has it.
    # A seed's draws by earlier cells of the step, in training (True) or not.
    earlier_draws: dict[bool, int]
    draws: dict[bool, int]  # By how much its seed moves on after a step.


@dataclass(eq=False, repr=False)
class CellCalls:
    """The calls of a cell, as a value of the cell's params."""

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

    def __deepcopy__(self, memo: Any) -> "CellCalls":
        """Returns itself: it stands for the user's layers, which are not copied."""
        return self

    def __repr__(self) -> str:
        return f"CellCalls({', '.join(call.operation.name for call in self.calls)})"


def local_values(
    cell: Cell,
    own: Sequence[Call],
    draws: Mapping[bool, Sequence[Draws]],
    values: Sequence[Value],
    outputs: Collection[int],
) -> dict[str, Any]:
    """Returns the fields of `CellCalls` that describe a cell's calls and values.

    All calls of the model have `draws`, in training or not.
    """
    numbers = [*cell.given, *(output.number for call in own for output in call.made)]
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
                {key: noted[i].belong for key, noted in draws.items()},
            )
            for i, call in enumerate(own, cell.start)
        ],
        "num_given": len(cell.given),
        "has_rows": [values[number].has_rows for number in numbers],
        "kept": [place[number] for number in cell.kept],
        "are_outputs": [number in outputs for number in cell.kept],
        "dtypes": [tf.as_dtype(values[x].spec.dtype) for x in cell.given],
    }
