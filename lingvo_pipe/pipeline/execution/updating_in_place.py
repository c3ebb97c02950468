"""Keras optimizers that update each variable on the device of its slots."""

from __future__ import annotations

import contextlib
import functools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from lingvo_pipe.pipeline.execution.host_slots import slot_device
from lingvo_pipe.pipeline.execution.shared_updates import SharedUpdates, by_device


class _OnDevices(keras.optimizers.Optimizer):
    """An optimizer that updates each variable on the device of the variable's slots.

    Slots are on the variable's device or, with `has_host_slots`, on that device's host.
    """

    has_host_slots = False

    def slot_device(self, variable: Any) -> str:
        return slot_device(_stored(variable).device, self.has_host_slots)

    def _all_reduce_sum_gradients(self, grads_and_vars: Any) -> Any:
        return grads_and_vars  # Keras would gather them on one device.

    def _distributed_tf_update_step(
        self, distribution: Any, grads_and_vars: Any, learning_rate: Any
    ) -> None:
        for gradient, variable in grads_and_vars:
            with tf.device(self.slot_device(variable)):
                self.update_step(gradient, variable, learning_rate)

    def _apply_weight_decay(self, variables: Sequence[Any]) -> None:
        for variable in variables:
            with tf.device(_stored(variable).device):
                super()._apply_weight_decay([variable])


class _State:
    """An optimizer's slots and shared functions, which Keras must not track."""

    def __init__(self) -> None:
        self.slots: defaultdict[Any, list[keras.Variable]] = defaultdict(list)
        self.updates = SharedUpdates()
        self.iterations: tf.Tensor | None = None
        self.new_slot_device: str | None = None  # While a slot is created.


class _SharesFunctions(_OnDevices):
    def add_variable_from_reference(
        self, reference_variable: Any, *args: Any, **kwargs: Any
    ) -> keras.Variable:
        state = self._state
        state.new_slot_device = self.slot_device(reference_variable)
        try:
            slot = super().add_variable_from_reference(
                reference_variable, *args, **kwargs
            )
        finally:
            state.new_slot_device = None
        self.slots_of(reference_variable).append(slot)
        return slot

    def add_variable(self, *args: Any, **kwargs: Any) -> keras.Variable:
        device = self._state.new_slot_device  # Keras places a slot by its variable.
        with tf.device(device) if device else contextlib.nullcontext():
            return super().add_variable(*args, **kwargs)

    def slots_of(self, variable: Any) -> list[keras.Variable]:
        return self._state.slots[_stored(variable).ref()]

    @property
    def _state(self) -> _State:
        return self.__dict__.setdefault("_state_in_place", _State())

    @property
    def iterations(self) -> Any:
        """The number of updates so far, which a shared function gets as an argument."""
        step = self._state.iterations
        return super().iterations if step is None else step

    def _distributed_tf_update_step(
        self, distribution: Any, grads_and_vars: Any, learning_rate: Any
    ) -> None:
        gradients, variables = zip(*grads_and_vars, strict=True)
        step = tf.convert_to_tensor(self.iterations)
        rate = tf.convert_to_tensor(learning_rate)
        for positions in by_device(variables).values():
            groups = [self._with_slots(variables[i]) for i in positions]
            sizes = tuple(map(len, groups))
            with tf.device(self.slot_device(variables[positions[0]])):
                self._state.updates.call(
                    ("all", sizes),
                    functools.partial(self._update_all, sizes),
                    [step, rate, *(gradients[i] for i in positions)],
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
            variable_and_slots = [next(remaining) for _ in range(size)]
            self._state.updates.call(
                "one", self._update_one, [step, rate, gradient], variable_and_slots
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


def updating_in_place(cls: type) -> type:
    """Returns a subclass of `cls` that updates each variable on the variable's device.

    Keras names no devices. So TensorFlow would copy gradients and slots to the first
    device, update there, and send the weights back. An object whose `has_host_slots` is
    set before it is built has its slots on the host of each variable's device, and
    updates there.
    """
    return _derived(_SharesFunctions, cls)


def in_place(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """Returns a copy of a built optimizer that updates variables on their devices.

    The copy is shallow: attributes that the copy sets in an update do not reach the
    original. Optimizers within `LossScaleOptimizer` and `MultiOptimizer` also update
    variables on the variables' devices. If the original's `has_host_slots` is set, they
    all update on the hosts of these devices.
    """
    return _in_place(optimizer, getattr(optimizer, "has_host_slots", False))


def _in_place(
    optimizer: keras.optimizers.Optimizer, has_host_slots: bool
) -> keras.optimizers.Optimizer:
    optimizer_copy: Any = object.__new__(_derived(_OnDevices, optimizer.__class__))
    attributes = vars(optimizer_copy)
    attributes.update(vars(optimizer), has_host_slots=has_host_slots)
    if "_inner_optimizers" in attributes:  # Not every Keras has MultiOptimizer.
        inner = [_in_place(x, has_host_slots) for x in optimizer.optimizers]
        attributes["_inner_optimizers"] = inner
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        inner_optimizer = _in_place(optimizer.inner_optimizer, has_host_slots)
        attributes["inner_optimizer"] = inner_optimizer
    return optimizer_copy


@functools.cache
def _derived(base: type, cls: type) -> type:
    return type(cls.__name__, (base, cls), {"__doc__": cls.__doc__})


def _stored(variable: Any) -> tf.Variable:
    return variable.value if isinstance(variable, keras.Variable) else variable
