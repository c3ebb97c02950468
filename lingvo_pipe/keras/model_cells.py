"""The cells of a Keras model: their calls, and which variables each has."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from dataclasses import dataclass

import keras

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.keras.calls import Call, calls_of
from lingvo_pipe.keras.cell_calls import CellCalls
from lingvo_pipe.keras.cutting import Step, cut
from lingvo_pipe.keras.keras_cell import KerasCell
from lingvo_pipe.keras.state import draws_of, kinds_of


@dataclass(frozen=True)
class ModelCells:
    """A model as cells.

    Attributes:
        cell_tpl: params of the cells.
        tied: variables that several cells have, as PipeliningLayer's `tied`.
    """

    cell_tpl: list[InstantiableParams]
    tied: dict[str, str]


def model_cells(model: keras.Model) -> ModelCells:
    """Returns the cells of a Sequential or functional model."""
    found = calls_of(model)
    calls = found.calls
    steps = [
        Step(
            [x.number for x in call.taken],
            [x.number for x in call.made],
            _has_kernel(call),
        )
        for call in calls
    ]
    cells = cut(
        [x.number for x in found.inputs], steps, [x.number for x in found.outputs]
    )
    values = sorted(
        {*found.inputs, *(x for call in calls for x in call.made)},
        key=lambda x: x.number,
    )
    draws = list(map(draws_of, calls))
    total: collections.Counter[int] = sum(draws, collections.Counter())
    earlier: collections.Counter[int] = collections.Counter()
    owners: dict[int, str] = {}
    cell_tpl, tied = [], {}
    for index, cell in enumerate(cells):
        own = calls[cell.start : cell.stop]
        variables = list({id(v): v for call in own for v in call.variables}.values())
        paths = [f"cells_{index}/v{i}" for i in range(len(variables))]
        owned = [id(v) not in owners for v in variables]
        for v, path in zip(variables, paths, strict=True):
            if owners.setdefault(id(v), path) != path:
                tied[path] = owners[id(v)]
        described = CellCalls(
            cell,
            calls,
            values,
            variables,
            kinds_of(variables, _layers(own)),
            owned,
            [earlier[id(v)] for v in variables],
            [
                total[id(v)] if yes else 0
                for v, yes in zip(variables, owned, strict=True)
            ],
        )
        earlier.update(sum(draws[cell.start : cell.stop], collections.Counter()))
        cell_tpl.append(KerasCell.Params().Set(calls=described))
    return ModelCells(cell_tpl, tied)


def _has_kernel(call: Call) -> bool:
    """Returns True if a call has a trained weight of two or more dimensions."""
    is_layer = isinstance(call.operation, keras.Layer)
    weights = call.operation.weights if is_layer else []
    return any(len(v.shape) > 1 for v in weights)


def _layers(calls: Sequence[Call]) -> list[keras.Layer]:
    found = {id(call.operation): call.operation for call in calls}
    return [x for x in found.values() if isinstance(x, keras.Layer)]
