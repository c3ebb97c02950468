"""Keras's optimizers, on the devices of the variables they update."""

from __future__ import annotations

import contextlib
import functools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from lingvo_pipe.pipeline.execution.shared_updates import SharedUpdates, by_device


class _State:
    """What an optimizer knows of its variables, hidden from Keras's tracking."""

    def __init__(self) -> None:
        self.slots: defaultdict[Any, list[keras.Variable]] = defaultdict(list)
        self.updates = SharedUpdates()
        self.iterations: tf.Tensor | None = None


class _UpdatesInPlace(keras.optimizers.Optimizer):
    """Updates of each device's variables there, by functions that they share."""

    def add_variable_from_reference(
        self, reference_variable: Any, *args: Any, **kwargs: Any
    ) -> keras.Variable:
        """Creates a slot of a variable."""
        slot = super().add_variable_from_reference(reference_variable, *args, **kwargs)
        self.slots_of(reference_variable).append(slot)
        return slot

    def slots_of(self, variable: Any) -> list[keras.Variable]:
        """Returns the list of a variable's slots."""
        if isinstance(variable, keras.Variable):
            variable = variable.value
        return self._state.slots[variable.ref()]

    @property
    def _state(self) -> _State:
        return self.__dict__.setdefault("_state_in_place", _State())

    @property
    def iterations(self) -> Any:
        """The number of updates; within a shared function, its argument."""
        given = self._state.iterations
        return super().iterations if given is None else given

    def _all_reduce_sum_gradients(self, grads_and_vars: Any) -> Any:
        return grads_and_vars  # Keras gathers even the only replica's on one device.

    def _distributed_tf_update_step(
        self, distribution: Any, grads_and_vars: Any, learning_rate: Any
    ) -> None:
        gradients, variables = zip(*grads_and_vars, strict=True)
        step = tf.convert_to_tensor(self.iterations)
        rate = tf.convert_to_tensor(learning_rate)
        for device, own in by_device(variables).items():
            groups = [self._with_slots(variables[i]) for i in own]
            sizes = tuple(map(len, groups))
            with tf.device(device):
                self._state.updates.call(
                    ("all", sizes),
                    functools.partial(self._update_all, sizes),
                    [step, rate, *(gradients[i] for i in own)],
                    [x for group in groups for x in group],
                )

    def _update_all(
        self,
        sizes: Sequence[int],
        tensors: list[tf.Tensor],
        variables: list[tf.Variable],
    ) -> list[tf.Tensor]:
        step, rate, *gradients = tensors
        remaining = iter(variables)
        for size, gradient in zip(sizes, gradients, strict=True):
            own = [next(remaining) for _ in range(size)]
            self._state.updates.call(
                "one", self._update_one, [step, rate, gradient], own
            )
        return []

    def _update_one(
        self, tensors: list[tf.Tensor], variables: list[tf.Variable]
    ) -> list[tf.Tensor]:
        step, rate, gradient = tensors
        with self._counting(step):
            self.update_step(gradient, variables[0], rate)
        return []

    @contextlib.contextmanager
    def _counting(self, step: tf.Tensor) -> Iterator[None]:
        self._state.iterations = step
        try:
            yield
        finally:
            self._state.iterations = None

    def _with_slots(self, variable: tf.Variable) -> list[tf.Variable]:
        return [variable, *(slot.value for slot in self.slots_of(variable))]

    def _apply_weight_decay(self, variables: Sequence[tf.Variable]) -> None:
        for variable in variables:
            with tf.device(variable.device):
                super()._apply_weight_decay([variable])


@functools.cache
def updating_in_place(cls: type) -> type:
    """Returns an optimizer's class that updates each variable on its own device.

    Keras names no devices, so TensorFlow would bring gradients and slots to the first
    device, update there, and send the weights back.
    """
    return type(cls.__name__, (_UpdatesInPlace, cls), {"__doc__": cls.__doc__})
