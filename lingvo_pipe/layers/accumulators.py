"""Sums over the micro-batches of a step: what a forward pass may hand over."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from lingvo_pipe.hyperparams.suggest import did_you_mean

if TYPE_CHECKING:
    from lingvo_pipe.layers.base_layer import BaseLayer


def accumulator_paths(layer: BaseLayer) -> Iterator[str]:
    """Paths of all accumulators below a layer."""
    for descendant in layer.Descendants():
        for name in descendant.own_accumulators:
            yield f"{descendant.path}/{name}"


def checked_share(
    specs: Mapping[str, tf.TensorSpec], name: str, value: Any, path: str
) -> tf.Tensor:
    """A forward pass's share of an accumulator, in the accumulator's dtype.

    Args:
        specs: of the layer's accumulators, by name.
        name: of the accumulator.
        value: the share.
        path: of the layer.

    Raises:
        ValueError: if there is no accumulator `name`, or the value has another shape.
    """
    if name not in specs:
        raise ValueError(
            f"Accumulate takes a registered name; {path} has {sorted(specs)}, got "
            f"{name!r}.{did_you_mean(name, specs)} Call RegisterAccumulator in "
            "__init__."
        )
    spec, value = specs[name], tf.cast(value, specs[name].dtype)
    if not spec.shape.is_compatible_with(value.shape):
        raise ValueError(
            f"Accumulate takes a value of the registered shape; {path}/{name} has "
            f"{spec.shape.as_list()}, got {value.shape.as_list()}."
        )
    return tf.ensure_shape(value, spec.shape)
