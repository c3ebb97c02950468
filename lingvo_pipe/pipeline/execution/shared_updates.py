"""Updates of variables by functions that identical variables share.

    variables of a device  --one call-->  a function for all identical devices
                                            `- a call per variable: a function per shape

So a variable adds only its handle to a step's graph, and the update of identical stages
is traced once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import tensorflow as tf

from lingvo_pipe.core.nests import spec_of
from lingvo_pipe.pipeline.loops.out_of_line import call_unoptimized

SharedUpdate = Callable[[list[tf.Tensor], list[tf.Variable]], list[tf.Tensor]]


class SharedUpdates:
    """A cache of functions that update variables, by name and shapes."""

    def __init__(self) -> None:
        self._functions: dict[Hashable, tuple[Any, list[Any]]] = {}

    def call(
        self,
        name: Hashable,
        update: SharedUpdate,
        tensors: Sequence[tf.Tensor],
        variables: Sequence[tf.Variable],
    ) -> list[tf.Tensor]:
        """Calls an update. In a graph, all identical calls share a function.

        Updates of one name must do the same. What they do may depend only on the shapes
        and dtypes of their arguments, and on variables that all calls share. `tensors`
        have static shapes, and `variables` belong to this call.
        """
        if tf.executing_eagerly():
            return update(list(tensors), list(variables))
        tensors = list(map(tf.convert_to_tensor, tensors))
        key = name, _signature(tensors), _signature(variables), _aliases(variables)
        if key not in self._functions:
            self._functions[key] = _traced(update, tensors, variables)
        function, captured = self._functions[key]
        handles = (variables[x].handle if isinstance(x, int) else x for x in captured)
        return call_unoptimized(function, [*tensors, *handles])


def by_device(variables: Sequence[tf.Variable]) -> dict[str, list[int]]:
    """Returns the positions of the variables on each device."""
    positions: dict[str, list[int]] = {}
    for i, variable in enumerate(variables):
        positions.setdefault(variable.device, []).append(i)
    return positions


def _signature(values: Sequence[Any]) -> tuple[Hashable, ...]:
    return tuple((x.dtype, tuple(x.shape)) for x in values)


def _aliases(variables: Sequence[tf.Variable]) -> tuple[int, ...]:
    """Returns the position of each variable's first occurrence."""
    first: dict[int, int] = {}
    return tuple(first.setdefault(id(x.handle), i) for i, x in enumerate(variables))


def _traced(
    update: SharedUpdate, tensors: Sequence[tf.Tensor], variables: Sequence[tf.Variable]
) -> tuple[Any, list[Any]]:
    """Traces an update. Returns the function and its captured inputs.

    A captured handle of one of `variables` is given as the position of the variable.
    """
    function = tf.function(
        lambda *flat: update(list(flat), list(variables)),
        autograph=False,
        experimental_attributes={"_noinline": True},
    ).get_concrete_function(*map(spec_of, tensors))
    positions = {id(variable.handle): i for i, variable in enumerate(variables)}
    captured = [positions.get(id(x), x) for x in function.captured_inputs]
    return function, captured
