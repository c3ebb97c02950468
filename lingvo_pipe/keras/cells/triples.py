"""Values between cells, with the hidden attributes that Keras attaches to tensors.

    (value, mask, logits)      mask: which timesteps count
                               logits: the input of the softmax or sigmoid that made
                               the value, for crossentropies

Each value that a cell passes to another cell or to the loss is such a triple, because
tensors lose their attributes there. Only outputs of the model keep their logits.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf
from keras import tree

from lingvo_pipe.keras.cells.private_names import (
    Functional,
    check_inputs,
    get_logits,
    get_mask,
    graph_of,
    output_structure,
    rounded_inputs,
    set_logits,
    set_mask,
    standardized_inputs,
    unpack_singleton,
)

# Keras also looks for these operations, by their types, to find logits.
_ACTIVATIONS = {"Softmax": tf.nn.softmax, "Sigmoid": tf.math.sigmoid}
_ATTRIBUTE = "attribute"
_PARTS = ("value", "mask", "logits")
_NAME = re.compile(r"(value|mask|logits)(\d+)(\w*)")


def triple(x: tf.Tensor, with_logits: bool) -> tuple[Any, Any, Any]:
    """Returns a value, its mask or None, and its logits or None.

    The logits are in a dict, by the activation's type or "attribute".
    """
    mask = get_mask(x)
    if not with_logits:
        return x, mask, None
    if (logits := get_logits(x)) is not None:
        return x, mask, {_ATTRIBUTE: logits}
    if tf.is_symbolic_tensor(x) and x.op.type in _ACTIVATIONS:
        return x, mask, {x.op.type: x.op.inputs[0]}
    return x, mask, None


def _attached(x: tf.Tensor, mask: Any, logits: Any) -> tf.Tensor:
    if mask is None and logits is None:
        return x
    kind, logits_tensor = next(iter((logits or {_ATTRIBUTE: None}).items()))
    value = tf.identity(x) if kind == _ATTRIBUTE else _ACTIVATIONS[kind](logits_tensor)
    if mask is not None:
        set_mask(value, mask)
    if kind == _ATTRIBUTE and logits_tensor is not None:
        set_logits(value, logits_tensor)
    return value


def all_attached(triples: Sequence[Any]) -> list[tf.Tensor]:
    """Returns the values of flat triples with their attributes."""
    return [_attached(*triples[i : i + 3]) for i in range(0, len(triples), 3)]


def first_inputs(model: keras.Model, x: Any) -> list[Any]:
    """Returns a model's inputs as flat triples for the first cell."""
    rounded = rounded_inputs(model, x)
    check_inputs(model, rounded)
    flat = standardized_inputs(graph_of(model), rounded)
    return [z for value in flat for z in triple(value, with_logits=False)]


def packed_outputs(graph: Functional, triples: Sequence[Any]) -> Any:
    """Returns flat triples as tensors in the structure of a call's outputs."""
    outputs = tree.pack_sequence_as(output_structure(graph), all_attached(triples))
    return unpack_singleton(outputs)


def tensors_by_name(triples: Sequence[Any]) -> dict[str, tf.Tensor]:
    """Returns the tensors of flat triples by names, from which `triples_of` reads."""
    tensors: dict[str, tf.Tensor] = {}
    for i, part in enumerate(triples):
        by_kind = part if isinstance(part, dict) else {"": part}
        name = f"{_PARTS[i % 3]}{i // 3}"
        tensors.update({f"{name}{kind}": x for kind, x in by_kind.items()})
    return {name: x for name, x in tensors.items() if x is not None}


def triples_of(tensors: Mapping[str, tf.Tensor]) -> list[Any]:
    """Returns flat triples from tensors by name. Names of other kinds are left out."""
    matches = [match for name in tensors if (match := _NAME.fullmatch(name))]
    triples: list[Any] = [None] * (3 * sum(match[1] == "value" for match in matches))
    for match in matches:
        part, number, kind = match.groups()
        x = tensors[match[0]]
        triples[3 * int(number) + _PARTS.index(part)] = {kind: x} if kind else x
    return triples


def rows_in_place(x: tf.Tensor, first: Any, num_rows: int) -> tf.Tensor:
    """Returns zeros, `[num_rows, ...]`, with rows `[b, ...]` put in from `first` on."""
    first = tf.cast(first, tf.int32)
    after = num_rows - first - tf.shape(x)[0]
    padded = tf.pad(x, [[first, after], *([0, 0] for _ in x.shape[1:])])
    return tf.ensure_shape(padded, [num_rows, *x.shape[1:]])
