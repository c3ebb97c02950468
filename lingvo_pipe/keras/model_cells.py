"""The cells of a Keras model: their calls, and which variables each has."""

import collections
import itertools
import operator
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import keras
import tensorflow as tf

from lingvo_pipe.keras.calls import Call, Step, calls_of, cut
from lingvo_pipe.keras.cell_calls import CellCalls, CellVariable, local_values
from lingvo_pipe.keras.private_names import flat_layers
from lingvo_pipe.keras.state import draws_of, kinds_of
from lingvo_pipe.nested_map import NestedMap


@dataclass(frozen=True)
class ModelCells:
    """A model as cells."""

    cells: dict[str, CellCalls]  # The cells by their names, in order.
    # Variables that several cells have, as PipeliningLayer's `tied`.
    tied: dict[str, str]

    @property
    def variables(self) -> list[CellVariable]:
        """The variables of all cells, shared ones of each."""
        return [v for cell in self.cells.values() for v in cell.variables]

    @property
    def variable_ids(self) -> set[int]:
        """The ids of the Keras variables."""
        return {id(v.variable) for v in self.variables}

    def move_seeds(self) -> None:
        """Moves the seeds on by the draws of an evaluation."""
        for v in self.variables:
            if v.draws[False]:
                seed = v.variable.value
                with tf.device(seed.device):
                    seed.assign_add(tf.constant([0, v.draws[False]], seed.dtype))


def model_cells(model: keras.Model, shares_variables: bool = True) -> ModelCells:
    """Returns the cells of a Sequential or functional model."""
    model_calls = calls_of(model)
    calls = model_calls.calls
    steps = [
        Step([x.number for x in c.taken], [x.number for x in c.made], c.has_kernel)
        for c in calls
    ]
    outputs = [x.number for x in model_calls.outputs]
    cells = cut([x.number for x in model_calls.inputs], steps, outputs)
    values = sorted(
        {*model_calls.inputs, *(x for call in calls for x in call.made)},
        key=lambda x: x.number,
    )
    draws = {key: [draws_of(call, key) for call in calls] for key in (True, False)}
    earlier = {key: _sums(x.counts for x in noted) for key, noted in draws.items()}
    owners: dict[int, str] = {}
    by_name: dict[str, CellCalls] = {}
    tied = {}
    for cell in cells:
        cell_calls = calls[cell.start : cell.stop]
        variables = list(
            {id(v): v for call in cell_calls for v in call.variables}.values()
        )
        name, names = cell_name(cell_calls, by_name), variable_names(cell_calls)
        paths = [f"{name}/{below}" for below in names]
        kinds = kinds_of(variables, [call.operation for call in cell_calls])
        owned = [id(v) not in owners for v in variables]
        for v, path in zip(variables, paths, strict=True):
            if owners.setdefault(id(v), path) != path:
                tied[path] = owners[id(v)]
        by_name[name] = CellCalls(
            **local_values(cell, cell_calls, draws, values, outputs),
            variables=[
                CellVariable(
                    v,
                    name,
                    kind,
                    is_owned,
                    {key: sums[cell.start][id(v)] for key, sums in earlier.items()},
                    {key: sums[-1][id(v)] * is_owned for key, sums in earlier.items()},
                )
                for v, name, kind, is_owned in zip(
                    variables, names, kinds, owned, strict=True
                )
            ],
            shares_variables=shares_variables,
        )
    return ModelCells(by_name, tied)


def _sums(counts: Iterable[collections.Counter[int]]) -> list[collections.Counter[int]]:
    """Returns the sums of the counts before each one, and of all."""
    initial: collections.Counter[int] = collections.Counter()
    return list(itertools.accumulate(counts, operator.add, initial=initial))


def cell_name(calls: Sequence[Call], taken: Collection[str]) -> str:
    """Returns a new name for a cell of these calls."""
    with_kernel = [call for call in calls if call.has_kernel]
    name = (with_kernel or calls)[0].operation.name
    name = re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_") or "cell"
    return _new(name, taken, "_call")  # Keras itself adds _1 for another layer.


def variable_names(calls: Sequence[Call]) -> list[str]:
    """Returns names of the variables of a cell's calls, each variable once."""
    names_by_id: dict[int, str] = {}
    for call in calls:
        for v in call.variables:
            if id(v) not in names_by_id:
                key = _key(v.path, call.operation.name)
                names_by_id[id(v)] = _new(key, names_by_id.values(), "_")
    return list(names_by_id.values())


def _key(path: str, layer: str) -> str:
    """Returns a variable's path below its layer, as a key of a NestedMap."""
    parts = path.split("/")
    below = parts[parts.index(layer) + 1 :] if layer in parts else parts[-1:]
    key = "_".join(re.sub(r"_\d+$", "", part) for part in below)
    key = re.sub(r"\W", "_", key)
    return key if key.isidentifier() and not hasattr(NestedMap, key) else f"v_{key}"


def _new(name: str, taken: Collection[str], separator: str) -> str:
    number, new = 0, name
    while new in taken:
        number += 1
        new = f"{name}{separator}{number}"
    return new


def trainable_flags(model: keras.Model) -> list[bool]:
    """Returns which layers are trainable, and which variables."""
    # A batch norm may have no variable that is.
    return [x.trainable for x in (*flat_layers(model), *model.variables)]
