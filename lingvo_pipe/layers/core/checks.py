"""Checks of a layer's params, of its weights' shapes and of its inputs' channels."""

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from lingvo_pipe.core.checks import is_count, is_sequence
from lingvo_pipe.core.errors import UserValueError, Words

# The most numbers in a weight on a device, and in a weight that is only declared.
_MAX_HELD, _MAX_DECLARED = 2**34, 2**56


def check_param(
    layer: Any,
    name: str,
    predicate: Callable[[Any], bool],
    expected: str,
    hint: str = "",
) -> None:
    """Raises ValueError unless a layer's param satisfies a predicate."""
    path, value = f"{layer.path}.{name}", layer.params.Get(name)
    with contextlib.suppress(TypeError):  # Raised for a value of another type.
        if predicate(value):
            return
    raise UserValueError(path=path, expected=expected, got=value, hint=hint)


def check_counts(layer: Any, *names: str) -> None:
    """Raises ValueError unless the params `names` are integers of at least 1."""
    for name in names:
        check_param(layer, name, is_count, "an integer of at least 1")


def check_sizes(layer: Any, number: int, *names: str) -> None:
    """Raises ValueError unless the params are lists of `number` counts each."""
    for name in names:
        check_param(
            layer,
            name,
            lambda x: is_sequence(x, number) and all(map(is_count, x)),
            f"a list of {number} integers of at least 1",
        )


def check_positive(layer: Any, name: str, hint: str = "") -> None:
    """Raises ValueError unless the param `name` is above 0."""
    check_param(layer, name, lambda x: x > 0.0, "a number above 0", hint)


def check_keep_prob(layer: Any) -> None:
    """Raises ValueError unless `keep_prob` is a probability above 0."""
    check_param(layer, "keep_prob", lambda x: 0.0 < x <= 1.0, "a number in (0, 1]")


def check_choice(value: Any, choices: Sequence[str], path: str) -> None:
    """Raises ValueError unless `value`, the param at `path`, is in `choices`."""
    if value not in choices:
        expected = f"one of {', '.join(map(repr, choices))}"
        raise UserValueError(path=path, expected=expected, got=value, names=choices)


def check_shape(shape: Sequence[Any], path: str) -> None:
    """Raises ValueError unless a weight may have this shape.

    Every dimension must be an integer of at least 1. The number of elements is limited,
    because TensorFlow waits ten seconds for memory that no device has. In a graph,
    which holds no values, the limit is higher.
    """
    maximum = _MAX_HELD if tf.executing_eagerly() else _MAX_DECLARED
    if not all(map(is_count, shape)) or math.prod(shape) > maximum:
        raise UserValueError(
            path=path,
            expected=f"dimensions of at least 1, with at most {maximum:,} numbers",
            got=list(shape),
            hint="Check the layer's params.",
        )


def check_channels(inputs: tf.Tensor, num_channels: int, path: str) -> None:
    """Raises ValueError unless the layer at `path` has inputs `[..., num_channels]`.

    TensorFlow does not detect every such mistake.
    """
    shape = tf.TensorShape(getattr(inputs, "shape", None))
    if not shape.rank or shape[-1] != num_channels:
        raise UserValueError(
            path=path,
            expected=f"inputs of {num_channels} channels, their last dimension",
            got=Words(f"shape {shape}"),
            hint="Check the params of the layer and of the previous layer.",
        )
