"""Nested structures of tensors in which None stands for what is absent."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf


def present(structure: Any) -> list[Any]:
    """What is there, flat."""
    return [x for x in tf.nest.flatten(structure) if x is not None]


def map_present(function: Callable, structure: Any) -> Any:
    """The structure with `function` of what is there; None stays."""
    return tf.nest.map_structure(
        lambda x: None if x is None else function(x), structure
    )


def pack_present(structure: Any, flat: Iterable[Any]) -> Any:
    """The structure with what is there replaced, in order: undoes `present`."""
    remaining = iter(flat)
    return map_present(lambda x: next(remaining), structure)


def spec_of(x: Any) -> tf.TensorSpec:
    """Shape and dtype of a tensor."""
    return tf.TensorSpec(x.shape, x.dtype)
