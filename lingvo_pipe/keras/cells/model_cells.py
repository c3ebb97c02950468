"""The cells of a Keras model: their calls, and which variables each has.

    calls        a   b   c   d   e          a call with a kernel starts a cell;
    kernels      *   .   *   .   .          the others join the cell before them
                '--.--' '----.----'
    cells          0         1
    passed on     b,a        e              what later cells, or the model, still need

The cells are the same for any number of stages. No two cells compare equal, because
equal configs of layers, which leave out functions and tensors, do not prove that the
layers compute the same. The pipeline compares traced graphs instead. Identical ones
share a trace.
"""

import collections
import itertools
import operator
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.keras.cells.calls import GraphTensor, KerasCall, ModelCalls, calls_of
from lingvo_pipe.keras.cells.private_names import (
    flat_layers,
    graph_of,
    is_graph,
    own_variables,
)
from lingvo_pipe.keras.cells.state import (
    RandomDraws,
    VariableKind,
    draws_of,
    kinds_of,
    written_by,
)
from lingvo_pipe.nested_map import NestedMap


class CellVariable(NamedTuple):
    """A Keras variable in a cell."""

    variable: keras.Variable
    name: str  # Its name in the cell.
    kind: VariableKind
    owned: bool  # True if no earlier cell has it.
    # Numbers of draws from a seed in training (True) or not (False): by earlier cells
    # of the step, and by the whole step, after which the owner advances the seed.
    earlier_draws: dict[bool, int]
    draws: dict[bool, int]  # 0 if the cell is not the owner.
    is_shared: bool  # True if several cells have it.


@dataclass(eq=False, repr=False)
class CellCalls:
    """The calls of a cell, as a value of the cell's params."""

    calls: Sequence[KerasCall]
    draws: Mapping[bool, Sequence[RandomDraws]]  # Of each call, in training or not.
    given: Sequence[GraphTensor]  # The tensors that the cell is given.
    kept: Sequence[GraphTensor]  # The tensors that it passes on.
    with_logits: Collection[GraphTensor]  # Those whose logits a loss may take.
    variables: list[CellVariable]  # The variables, each once.
    # Whether the cell uses the Keras model's own variables, or creates others.
    shares_variables: bool

    def __deepcopy__(self, memo: Any) -> "CellCalls":
        """Returns itself, because the user's layers must not be copied."""
        return self

    def __repr__(self) -> str:
        return f"CellCalls({', '.join(call.operation.name for call in self.calls)})"


@dataclass(frozen=True)
class ModelCells:
    """The cells of a model."""

    cells: dict[str, CellCalls]  # The cells by their names, in order.
    # Variables that several cells have, as PipeliningLayer's `tied`.
    tied: dict[str, str]

    @property
    def variables(self) -> list[CellVariable]:
        """The variables of all cells. A shared variable has an entry for each cell."""
        return [v for cell in self.cells.values() for v in cell.variables]

    def move_seeds(self) -> None:
        """Advances the seeds by the draws of an evaluation."""
        for v in self.variables:
            if v.draws[False]:
                seed = v.variable.value
                with tf.device(seed.device):
                    seed.assign_add(tf.constant([0, v.draws[False]], seed.dtype))


def model_cells(model: keras.Model, shares_variables: bool = True) -> ModelCells:
    """Returns the cells of a Sequential or functional model.

    Raises:
        ValueError: if the model calls no layer.
    """
    model_calls = calls_of(model)
    calls = model_calls.calls
    if not calls:
        raise UserValueError(
            path=f"model {model.name!r}",
            expected="at least one layer between its inputs and outputs",
            got=Words("none"),
        )
    draws = {key: [draws_of(call, key) for call in calls] for key in (True, False)}
    sums = {key: _sums(x.counts for x in noted) for key, noted in draws.items()}
    owners: dict[int, str] = {}
    cells: dict[str, CellCalls] = {}
    tied = {}
    ranges, logits = cut(model_calls), _with_logits(model_calls)
    num_cells = collections.Counter(
        key for x in ranges for key in {id(v) for v in _variables(calls, x)}
    )
    for start, stop, given, kept in ranges:
        cell_calls = calls[start:stop]
        cell, named = cell_name(cell_calls, cells), _named_variables(cell_calls)
        kinds = kinds_of(
            [*named.values()],
            [call.operation for call in cell_calls],
            {x for call in cell_calls for x in written_by(call)},
        )
        variables = []
        for (name, v), kind in zip(named.items(), kinds, strict=True):
            path = f"{cell}/{name}"
            owner = owners.setdefault(id(v), path)
            if owner != path:
                tied[path] = owner
            earlier = {key: counts[start][id(v)] for key, counts in sums.items()}
            total = {
                key: counts[-1][id(v)] if owner == path else 0
                for key, counts in sums.items()
            }
            shared = num_cells[id(v)] > 1
            variables.append(
                CellVariable(v, name, kind, owner == path, earlier, total, shared)
            )
        cells[cell] = CellCalls(
            cell_calls,
            {key: noted[start:stop] for key, noted in draws.items()},
            given,
            kept,
            logits,
            variables,
            shares_variables,
        )
    return ModelCells(cells, tied)


class CellRange(NamedTuple):
    """A range of consecutive calls, with the tensors that enter and leave it."""

    start: int
    stop: int
    given: tuple[GraphTensor, ...]
    kept: tuple[GraphTensor, ...]


def _variables(calls: Sequence[KerasCall], cell: CellRange) -> list[keras.Variable]:
    return [v for call in calls[cell.start : cell.stop] for v in call.variables]


def cut(model: ModelCalls) -> list[CellRange]:
    """Returns the cells of a model. They pass on each tensor until its last use."""
    calls = model.calls
    starts = [i for i, call in enumerate(calls) if call.has_kernel or i == 0]
    # Cheap calls before the first kernel belong to its cell.
    if len(starts) > 1 and not calls[0].has_kernel:
        del starts[1]
    stops = [*starts[1:], len(calls)]
    last_use = {x: i for i, call in enumerate(calls) for x in call.taken}
    last_use.update(dict.fromkeys(model.outputs, len(calls)))
    cells, live = [], model.inputs
    for start, stop in zip(starts, stops, strict=True):
        computed = [x for call in calls[start:stop] for x in call.made]
        kept = tuple(x for x in (*live, *computed) if last_use.get(x, -1) >= stop)
        if stop == len(calls):
            kept = model.outputs
        cells.append(CellRange(start, stop, live, kept))
        live = kept
    return cells


def _with_logits(model: ModelCalls) -> set[GraphTensor]:
    """Returns the outputs, and tensors that a layer may pass on as an output."""
    tensors = set(model.outputs)
    for call in reversed(model.calls):
        if not tensors.isdisjoint(call.made):
            shapes = [x.spec.shape for x in call.made]
            tensors.update(x for x in call.taken if x.spec.shape in shapes)
    return tensors


def _sums(counts: Iterable[collections.Counter[int]]) -> list[collections.Counter[int]]:
    """Returns the sums of the first 0, 1, 2, ... counts, and of all counts."""
    initial: collections.Counter[int] = collections.Counter()
    return list(itertools.accumulate(counts, operator.add, initial=initial))


def cell_name(calls: Sequence[KerasCall], taken: Collection[str]) -> str:
    """Returns a cell's name, which is not in `taken`, from the name of a layer."""
    with_kernel = [call for call in calls if call.has_kernel]
    name = (with_kernel or calls)[0].operation.name
    name = re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_") or "cell"
    return _new(name, taken, "_call")  # Keras itself adds _1 for another layer.


def _named_variables(calls: Sequence[KerasCall]) -> dict[str, keras.Variable]:
    named: dict[str, keras.Variable] = {}
    ids = set()
    for call in calls:
        for v in call.variables:
            if id(v) not in ids:
                ids.add(id(v))
                named[_new(_key(v.path, call.operation.name), named, "_")] = v
    return named


def _key(path: str, layer: str) -> str:
    """Returns a NestedMap's key from the part of `path` after the layer's name."""
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


def structure_of(model: keras.Model) -> tuple[list[Any], list[int]]:
    """Returns the graphs of a model and of the models in it, and its variables' ids.

    If one of them changes, such as by Sequential.add or by LoRA, so do the cells.
    """
    layers = flat_layers(model)
    graphs = [graph_of(x) for x in layers if is_graph(x)]
    # `model.variables` lists them again for each level of layers, at each step.
    return graphs, [id(v) for x in layers for v in own_variables(x)]


def trainable_flags(model: keras.Model) -> list[bool]:
    """Returns the `trainable` flags of a model's layers, then of its variables."""
    # A trainable batch normalization may have no trainable variable.
    return [x.trainable for x in (*flat_layers(model), *model.variables)]
