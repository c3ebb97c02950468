"""The cells of a Keras model: their calls, and which variables each has."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from dataclasses import dataclass

import keras

from lingvo_pipe.keras.calls import Call, calls_of
from lingvo_pipe.keras.cell_calls import CellCalls
from lingvo_pipe.keras.cell_names import cell_name, variable_names
from lingvo_pipe.keras.cutting import Step, cut
from lingvo_pipe.keras.state import draws_of, kinds_of


@dataclass(frozen=True)
class ModelCells:
    """A model as cells.

    Attributes:
        cells: the cells by their names, in order.
        tied: variables that several cells have, as PipeliningLayer's `tied`.
    """

    cells: dict[str, CellCalls]
    tied: dict[str, str]


def model_cells(model: keras.Model, shares_variables: bool = True) -> ModelCells:
    """Returns the cells of a Sequential or functional model.

    Args:
        model: the model.
        shares_variables: whether layers of the cells store the model's variables; else
            each has variables of its own.
    """
    found = calls_of(model)
    calls = found.calls
    steps = [
        Step(
            [x.number for x in call.taken],
            [x.number for x in call.made],
            call.has_kernel,
        )
        for call in calls
    ]
    outputs = [x.number for x in found.outputs]
    cells = cut([x.number for x in found.inputs], steps, outputs)
    values = sorted(
        {*found.inputs, *(x for call in calls for x in call.made)},
        key=lambda x: x.number,
    )
    draws = list(map(draws_of, calls))
    total: collections.Counter[int] = sum(draws, collections.Counter())
    earlier: collections.Counter[int] = collections.Counter()
    owners: dict[int, str] = {}
    by_name: dict[str, CellCalls] = {}
    tied = {}
    for cell in cells:
        own = calls[cell.start : cell.stop]
        variables = list({id(v): v for call in own for v in call.variables}.values())
        name, names = cell_name(own, by_name), variable_names(own)
        paths = [f"{name}/{below}" for below in names]
        owned = [id(v) not in owners for v in variables]
        for v, path in zip(variables, paths, strict=True):
            if owners.setdefault(id(v), path) != path:
                tied[path] = owners[id(v)]
        by_name[name] = CellCalls(
            cell,
            calls,
            values,
            outputs,
            variables,
            kinds_of(variables, _layers(own)),
            owned,
            [earlier[id(v)] for v in variables],
            [
                total[id(v)] if yes else 0
                for v, yes in zip(variables, owned, strict=True)
            ],
            names,
            shares_variables,
        )
        earlier.update(sum(draws[cell.start : cell.stop], collections.Counter()))
    return ModelCells(by_name, tied)


def _layers(calls: Sequence[Call]) -> list[keras.Layer]:
    found = {id(call.operation): call.operation for call in calls}
    return [x for x in found.values() if isinstance(x, keras.Layer)]
