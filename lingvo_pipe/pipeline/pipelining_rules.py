"""What each param of a PipeliningLayer must be by itself.

What it must be beside the others is found where they are put together; so is what
`splits` and `schedule` must be, where stages and a schedule are made of them.
"""

from __future__ import annotations

import contextlib
import numbers
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.hyperparams.suggest import did_you_mean
from lingvo_pipe.layers.base_layer import BaseLayer
from lingvo_pipe.layers.local_loss import LocalLossLayer
from lingvo_pipe.pipeline.schedules.recompute import POLICIES
from lingvo_pipe.pipeline.splitting.exact_amounts import is_amount
from lingvo_pipe.pipeline.splitting.partition import is_auto, is_count

# Costs of cells that are times.
MEASURED = "measured"

# May be auto in the trainer, which has the planner settle them.
_PLANNED = ("num_micro_batches", "schedule", "recompute")

_MAX_SHOWN = 200


def check_each_param(p: InstantiableParams, where: str) -> None:
    """Checks the params one by one.

    Args:
        p: params of a PipeliningLayer.
        where: the layer's path, or its params'.

    Raises:
        ValueError: saying what the first that is wrong must be, and what it is.
    """
    _check_settled(p, where)
    for name, rule in _RULES.items():
        value = p.Get(name)
        if not rule.holds(value, p):
            hint = did_you_mean(value, rule.names) if isinstance(value, str) else ""
            raise ValueError(
                f"{name} must be {rule.wanted}; that of {where} is {shown(value)}."
                f"{hint} {rule.advice}"
            )


def _check_settled(p: InstantiableParams, where: str) -> None:
    """Checks that nothing is left to the planner, which needs devices and a batch."""
    if left := [name for name in _PLANNED if is_auto(p.Get(name))]:
        raise ValueError(
            f"{' and '.join(left)} must be settled before a pipeline is made: the "
            "trainer settles what is auto, by measuring its devices; that of "
            f"{where} is 'auto'. Give numbers and names, or use the trainer."
        )


def count_parts(p: InstantiableParams, where: str) -> int:
    """P, into how many parts the micro-batches are cut.

    Raises:
        ValueError: if the layer's replicas can't share them, or they the micro-batches.
    """
    num_parts = p.num_replicas if p.num_parts is None else p.num_parts
    if num_parts % p.num_replicas:
        raise ValueError(
            "num_parts must be a multiple of num_replicas, so that all replicas run as "
            f"many; {where} has num_parts {num_parts} and num_replicas "
            f"{p.num_replicas}. Leave num_parts None, or change one of them."
        )
    if p.num_micro_batches % num_parts:
        name = "num_replicas" if p.num_parts is None else "num_parts"
        raise ValueError(
            f"num_micro_batches must be a multiple of {name}, so that all parts have "
            f"as many; {where} has num_micro_batches {p.num_micro_batches} and {name} "
            f"{num_parts}. Change one of them."
        )
    return num_parts


def check_not_nested(layers: Iterable[BaseLayer], kind: type, where: str) -> None:
    """Checks that no pipeline is in another, and no local loss within a cell.

    Args:
        layers: the cells of a pipeline, and those before.
        kind: what a pipeline is.
        where: the pipeline's path.

    Raises:
        ValueError: naming those that are.
    """
    inner = [
        f"{descendant.path} in {layer.path}"
        for layer in layers
        for descendant in layer.Descendants()
        if isinstance(descendant, kind)
    ]
    if inner:
        raise ValueError(
            "A pipeline can't be a cell of another, nor in one, for a cell runs on one "
            f"device; {where} has {', '.join(inner)}. List the inner pipeline's cells "
            "in cell_tpl instead."
        )
    within = [
        descendant.path
        for layer in layers
        for descendant in layer.Descendants()
        if isinstance(descendant, LocalLossLayer) and descendant is not layer
    ]
    if within:
        raise ValueError(
            "A LocalLossLayer is a cell, for the pipeline gives it the targets; "
            f"{', '.join(within)} is within another layer of {where}. List the layers "
            "of that one in cell_tpl."
        )


@contextlib.contextmanager
def faults_of(name: str, where: str) -> Iterator[None]:
    """Has errors within say which param they are about, of the layer at `where`."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{name} of {where}: {error}") from error


def shown(value: Any) -> str:
    """A value in an error: Params as their class, and nothing at length."""
    if isinstance(value, InstantiableParams):
        text = f"{getattr(value.cls, '__name__', value.cls)}.Params()"
    elif isinstance(value, (list, tuple)):
        items = ", ".join(map(shown, value))
        text = f"[{items}]" if isinstance(value, list) else f"({items})"
    else:
        text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


class _Rule(NamedTuple):
    """What a value must be.

    Attributes:
        wanted: in words.
        holds: whether a value is that, given all params; those above it are right.
        advice: what to do.
        names: what a misspelt value may have been meant to be.
    """

    wanted: str
    holds: Callable[[Any, InstantiableParams], bool]
    advice: str
    names: tuple[str, ...] = ()


def _is_list(value: Any, holds: Callable[[Any], bool] = lambda item: True) -> bool:
    return isinstance(value, (list, tuple)) and all(map(holds, value))


def _is_layer(value: Any) -> bool:
    is_params = isinstance(value, InstantiableParams)
    return (
        is_params and isinstance(value.cls, type) and issubclass(value.cls, BaseLayer)
    )


def _is_index(value: Any) -> bool:
    is_integer = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    return is_integer and value >= 0


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _are_paths(value: Any, p: InstantiableParams) -> bool:
    return isinstance(value, Mapping) and _is_list(
        [*value.keys(), *value.values()], _is_text
    )


def _are_costs(value: Any, p: InstantiableParams) -> bool:
    if isinstance(value, str):
        return value == MEASURED
    return _is_list(value, is_amount) and len(value) == len(p.cell_tpl)


def _is_floating(value: Any, p: InstantiableParams) -> bool:
    dtype = _dtype(value)
    return dtype is not None and dtype.is_floating


def _are_dtypes(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(map(_are_dtypes, value.values()))
    return value is None or _dtype(value) is not None


def _dtype(value: Any) -> tf.DType | None:
    """The dtype that a value is or names, if any."""
    if isinstance(value, numbers.Number):  # TensorFlow has one for each dtype.
        return None
    try:
        return tf.as_dtype(value)
    except TypeError:
        return None


def _is_recompute(value: Any, p: InstantiableParams) -> bool:
    if isinstance(value, str):
        return value in POLICIES
    if not _is_list(value, _is_index):
        return False
    return len(value) == len(set(value)) and all(i < len(p.cell_tpl) for i in value)


def _or_none(
    holds: Callable[[Any, InstantiableParams], bool],
) -> Callable[[Any, InstantiableParams], bool]:
    return lambda value, p: value is None or holds(value, p)


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
    "cell_costs": _Rule(
        f"None, {MEASURED!r}, or a list with a number for each cell, finite and not "
        "negative",
        _or_none(_are_costs),
        "Give a cost for each layer of cell_tpl, or leave it None for their flops.",
        (MEASURED,),
    ),
    "memory_limit": _Rule(
        "None, or a number of bytes above 0",
        _or_none(lambda value, p: is_amount(value) and value > 0),
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
    "num_micro_batches": _Rule(
        "an integer of at least 1",
        lambda value, p: is_count(value),
        "Set it to 1 to leave the mini-batch whole.",
    ),
    "num_replicas": _Rule(
        "an integer of at least 1",
        lambda value, p: is_count(value),
        "Set it to 1 unless devices of several pipelines share the mini-batch.",
    ),
    "num_parts": _Rule(
        "None, or an integer of at least 1",
        _or_none(lambda value, p: is_count(value)),
        "Leave it None to have a part for each replica.",
    ),
    "micro_batch_size": _Rule(
        "None, or an integer of at least 1",
        _or_none(lambda value, p: is_count(value)),
        "Leave it None to have the mini-batch cut evenly.",
    ),
    "batch_dim": _Rule(
        "an integer of at least 0",
        lambda value, p: _is_index(value),
        "Set it to 0 if the examples are the first dimension.",
    ),
    "state_dtype": _Rule(
        "None, or a dtype of floating-point numbers",
        _or_none(_is_floating),
        "Give a tf.DType or the name of one, such as 'bfloat16'.",
    ),
    "stages_per_device": _Rule(
        "an integer of at least 1",
        lambda value, p: is_count(value),
        "Set it to 1 unless devices take turns, as in the schedule 'interleaved'.",
    ),
    "recompute": _Rule(
        f"None, one of {', '.join(map(repr, POLICIES))}, or a list of indices of cells",
        _or_none(_is_recompute),
        "Count cells from 0, name each once; or leave it None, for the schedule's own.",
        POLICIES,
    ),
    "jit_compile": _Rule(
        "True or False",
        lambda value, p: isinstance(value, bool),
        "Leave it False unless XLA is to compile the cells.",
    ),
    "devices": _Rule(
        "None, or a list of names",
        _or_none(lambda value, p: _is_list(value, _is_text) and len(value) > 0),
        "Write devices=['cpu:0', 'cpu:1'], or leave it None.",
    ),
}
