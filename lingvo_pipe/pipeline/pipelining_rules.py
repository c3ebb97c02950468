"""Validation of each param of a PipeliningLayer.

Rules that involve several params are checked where the params are combined. `splits`
and `schedule` are checked where stages and a schedule are made from them.
"""

import contextlib
import math
import numbers
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from lingvo_pipe.core.checks import is_count
from lingvo_pipe.core.errors import UserError, UserValueError, Words
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.local_loss import LocalLossLayer
from lingvo_pipe.pipeline.schedules.by_name import V_SHAPED_NAMES
from lingvo_pipe.pipeline.schedules.recompute import POLICIES
from lingvo_pipe.pipeline.splitting.balance import is_finite_number
from lingvo_pipe.pipeline.splitting.partitioning import is_auto

# The value of cell_costs for measured times.
MEASURED = "measured"
# The value of offload for all cells.
ALWAYS = "always"
# Params that may be auto in the trainer, whose planner resolves them.
PLANNED = ("num_micro_batches", "schedule", "recompute", "offload")


def check_each_param(p: InstantiableParams, path: str) -> None:
    """Raises ValueError if a param of the pipeline at `path` is wrong by itself.

    Params with an item per cell have one per slice. So if `slices` is set, call this
    again after the cells are cut.
    """
    if left := [name for name in PLANNED if is_auto(p.Get(name))]:
        raise UserValueError(
            path=f"{path}.{left[0]}",
            expected=f"resolved values of {' and '.join(left)}",
            got="auto",
            hint="Set them, or call resolve_pipeline, which measures the devices, as "
            "the trainer does.",
        )
    for name, rule in _RULES.items():
        value = p.Get(name)
        if not rule.predicate(value, p):
            raise UserValueError(
                path=f"{path}.{name}",
                expected=rule.expected,
                got=value,
                names=rule.names,
                hint=rule.hint,
            )


def count_batch_shards(p: InstantiableParams, path: str) -> int:
    """Returns the number of batch shards.

    Raises:
        ValueError: if the shards would be unequal.
    """
    name = "num_replicas" if p.num_batch_shards is None else "num_batch_shards"
    num_batch_shards: int = p.Get(name)
    if num_batch_shards % p.num_replicas:
        raise UserValueError(
            path=f"{path}.num_batch_shards",
            expected=f"a multiple of num_replicas, {p.num_replicas}",
            got=num_batch_shards,
        )
    if p.num_micro_batches % num_batch_shards:
        raise UserValueError(
            path=f"{path}.num_micro_batches",
            expected=f"a multiple of {name}, {num_batch_shards}",
            got=p.num_micro_batches,
        )
    return num_batch_shards


def check_not_nested(
    before: Sequence[BaseLayer], cells: Sequence[BaseLayer], kind: type, path: str
) -> None:
    """Raises ValueError if a layer contains a pipeline, or a local loss is no cell.

    `kind` is the class of pipelines. `path` is the path of the outer pipeline.
    """
    layers = (*before, *cells)
    below = [(layer, inner) for layer in layers for inner in layer.Descendants()]
    if pipelines := ", ".join(
        f"{x.path} in {layer.path}" for layer, x in below if isinstance(x, kind)
    ):
        raise UserValueError(
            path=f"{path}.cell_tpl",
            expected="no pipeline inside a cell, which runs on one device",
            got=Words(pipelines),
            hint="List the inner pipeline's cells in cell_tpl instead.",
        )
    if losses := ", ".join(
        x.path
        for layer, x in below
        if isinstance(x, LocalLossLayer) and not (x is layer and x in cells)
    ):
        raise UserValueError(
            path=f"{path}.cell_tpl",
            expected="each LocalLossLayer to be a cell, which gets the targets",
            got=Words(f"{losses} elsewhere"),
            hint="List the layers of the outer layer in cell_tpl.",
        )


@contextlib.contextmanager
def problems_of(name: str, path: str) -> Iterator[None]:
    """Turns ValueErrors of the block into errors about the param `name` at `path`."""
    try:
        yield
    except ValueError as error:
        if isinstance(error, UserError) and error.expected:
            error.path = error.path or name
            raise error.within(path) from error
        text = str(error).removeprefix(f"{name}: ")
        raise UserValueError(f"{path}.{name}: {text}", path=f"{path}.{name}") from error


Predicate = Callable[[Any, InstantiableParams], bool]


class _Rule(NamedTuple):
    expected: str  # The allowed values, in words.
    predicate: Predicate
    hint: str
    names: tuple[str, ...] = ()  # Names that a misspelt value may mean.


def _is_list(value: Any, predicate: Callable[[Any], bool] = lambda item: True) -> bool:
    return isinstance(value, (list, tuple)) and all(map(predicate, value))


def _is_layer(value: Any) -> bool:
    cls = value.cls if isinstance(value, InstantiableParams) else None
    return isinstance(cls, type) and issubclass(cls, BaseLayer)


def _is_index(value: Any) -> bool:
    return is_count(value, minimum=0)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _are_paths(value: Any, p: InstantiableParams) -> bool:
    is_map = isinstance(value, Mapping)
    return is_map and _is_list([*value, *value.values()], _is_text)


def _are_slices(value: Any, p: InstantiableParams) -> bool:
    if not isinstance(value, Mapping):
        return is_auto(value)
    return _is_list([*value], _is_text) and all(map(is_count, value.values()))


def _are_costs(value: Any, p: InstantiableParams) -> bool:
    if isinstance(value, str):
        return value == MEASURED
    is_list = _is_list(value, is_finite_number)
    return is_list and (p.slices is not None or len(value) == len(p.cell_tpl))


def _is_floating(value: Any, p: InstantiableParams) -> bool:
    dtype = _dtype(value)
    return dtype is not None and dtype.is_floating


def _are_dtypes(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(map(_are_dtypes, value.values()))
    return value is None or _dtype(value) is not None


def _dtype(value: Any) -> tf.DType | None:
    if isinstance(value, numbers.Number):  # TensorFlow numbers its dtypes.
        return None
    try:
        return tf.as_dtype(value)
    except TypeError:
        return None


def _is_recompute(value: Any, p: InstantiableParams) -> bool:
    if isinstance(value, str):
        return value in POLICIES
    num_cells = math.inf if p.slices is not None else len(p.cell_tpl)
    is_list = _is_list(value, lambda i: _is_index(i) and i < num_cells)
    return is_list and len(value) == len(set(value))


def _is_offload(value: Any, p: InstantiableParams) -> bool:
    if isinstance(value, str):
        return value == ALWAYS
    if is_finite_number(value):
        return 0 < value < 1
    return _is_recompute(value, p) and len(value) > 0


def _or_none(predicate: Predicate) -> Predicate:
    return lambda value, p: value is None or predicate(value, p)


def _count(hint: str) -> _Rule:
    return _Rule("an integer of at least 1", lambda value, p: is_count(value), hint)


def _optional_count(hint: str) -> _Rule:
    count = _count(hint)
    return _Rule(f"None, or {count.expected}", _or_none(count.predicate), hint)


_RULES = {
    "cell_tpl": _Rule(
        "a list of at least one layer's Params",
        lambda value, p: _is_list(value, _is_layer) and len(value) > 0,
        "Write cell_tpl=[TheLayer.Params(), ...].",
    ),
    "before_tpl": _Rule(
        "a list of layers' Params, which may be empty",
        lambda value, p: _is_list(value, _is_layer),
        "Write before_tpl=[TheLayer.Params(), ...].",
    ),
    "tied": _Rule(
        "a map of variable paths to variable paths",
        _are_paths,
        "Write {'cells_5/softmax/w': 'cells_0/emb/w'}, or {} for none.",
    ),
    "slices": _Rule(
        "None, 'auto', or a map of paths of layers to numbers of slices",
        _or_none(_are_slices),
        "Write {'cells[3].feed_forward': 4}, for instance.",
        ("auto",),
    ),
    "cell_costs": _Rule(
        f"None, {MEASURED!r}, or a list with a finite, non-negative number for each "
        "cell",
        _or_none(_are_costs),
        "Give a cost for each layer of cell_tpl, or leave it None for their flops.",
        (MEASURED,),
    ),
    "memory_limit": _Rule(
        "None, or a number of bytes above 0",
        _or_none(lambda value, p: is_finite_number(value) and value > 0),
        "Write memory_limit=12e9, for instance.",
    ),
    "input_shapes": _Rule(
        "None, or a list with a shape for each input",
        _or_none(lambda value, p: _is_list(value)),
        "Write input_shapes=[(8, 32, 32, 3)], for instance.",
    ),
    "input_dtypes": _Rule(
        "None, or a list with a dtype, None or a map of dtypes for each input",
        _or_none(lambda value, p: _is_list(value, _are_dtypes)),
        "Write input_dtypes=['int32'], for instance.",
    ),
    "num_micro_batches": _count("Set it to 1 to leave the mini-batch whole."),
    "num_replicas": _count("Set it to 1 for a single pipeline."),
    "num_batch_shards": _optional_count("Leave it None for one shard per replica."),
    "micro_batch_size": _optional_count("Leave it None to cut the mini-batch evenly."),
    "batch_dim": _Rule(
        "an integer of at least 0",
        lambda value, p: _is_index(value),
        "Set it to 0 if the examples are the first dimension.",
    ),
    "state_dtype": _Rule(
        "None, or a floating-point dtype",
        _or_none(_is_floating),
        "Give a tf.DType or the name of one, such as 'bfloat16'.",
    ),
    "stages_per_device": _count(
        f"Set it to 2 for the schedules {', '.join(V_SHAPED_NAMES)}, to any number for "
        "interleaved, interleaved_zero_bubble and .csv files, and to 1 for others."
    ),
    "recompute": _Rule(
        f"None, one of {', '.join(map(repr, POLICIES))}, or a list of indices of cells",
        _or_none(_is_recompute),
        "List each cell once, counted from 0 (in an override: 'recompute (list) : "
        "[0, 2]'); or leave it None for the schedule's own.",
        POLICIES,
    ),
    "offload": _Rule(
        f"None, {ALWAYS!r}, a share of the cells above 0 and below 1, or a list of at "
        "least one index of a cell",
        _or_none(_is_offload),
        "List each cell once, counted from 0 (in an override: 'offload (list) : [0, "
        "2]', for a share 'offload (float) : 0.5'); or leave it None to offload "
        "nothing.",
        (ALWAYS,),
    ),
    "jit_compile": _Rule(
        "True or False",
        lambda value, p: isinstance(value, bool),
        "Leave it False unless XLA should compile the cells.",
    ),
    "devices": _Rule(
        "None, or a list of names",
        _or_none(lambda value, p: _is_list(value, _is_text) and len(value) > 0),
        "Write devices=['cpu:0', 'cpu:1'], or leave it None.",
    ),
}
