"""Adafactor (Shazeer and Stern, 1804.04235, algorithms 4 to 6), variable by variable.

    ρ = the rate that a schedule says; without one, min(learning_rate, 1/√t)
    α = ρ·max(ε₂, RMS(w))           steps are relative to the weights
    β = 1 - t^-0.8
    of matrices:  R ← β·R + (1 - β)·mean over each row of (g² + ε₁)
                  C ← β·C + (1 - β)·mean over each column of (g² + ε₁)
                  V = R·C / mean(R)
    of vectors:   V ← β·V + (1 - β)·(g² + ε₁)
    u = g/√V;  u ← u / max(1, RMS(u)/d)
    w ← w - α·u

for step t = 1, 2, ... A tensor of more dimensions is many matrices, its last two
dimensions. What is kept of a matrix of n·m weights are n + m numbers: R and C.

Published with a learning rate of 0.01, which gives the paper's ρ = min(0.01, 1/√t), or
for GShard's translations (2006.16668) that with `InverseSquareRoot`.

Keras's Adafactor can't take its place: it names its slots by the variable, which for
plain TensorFlow variables is no name that Keras allows; it creates R and C wherever it
happens to be; it keeps V, as large as the variable, beside them; and it bounds the rate
by 1/√t whatever a schedule, or `relative_step=False`, says.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf


class Adafactor(keras.optimizers.Adafactor):
    """Adafactor with Keras's arguments, for plain variables on any devices.

    `relative_step=False` leaves out the bound of 1/√t, so that a learning rate without
    a schedule is constant. Slots of variables of 16 bits have 32.
    """

    def build(self, var_list: list[tf.Variable]) -> None:
        """Creates the slots of all variables, each on the variable's device."""
        # Not the base's own method, which would create its slots.
        keras.optimizers.Optimizer.build(self, var_list)
        self._slots = [self._slots_of(variable) for variable in var_list]

    def update_step(
        self, gradient: tf.Tensor, variable: tf.Variable, learning_rate: Any
    ) -> None:
        """Updates a variable and its slots; see the formulas above."""
        dtype = _slot_dtype(variable)
        step = tf.cast(self.iterations + 1, dtype)
        rate = tf.cast(learning_rate, dtype)
        if self.relative_step and not callable(self._learning_rate):
            rate = tf.minimum(rate, tf.math.rsqrt(step))
        weights = tf.cast(variable.read_value(), dtype)
        rate *= tf.maximum(tf.constant(self.epsilon_2, dtype), _rms(weights))
        gradient = tf.cast(gradient, dtype)
        update = gradient * self._factors(gradient, variable, step)
        update /= tf.maximum(tf.ones([], dtype), _rms(update) / self.clip_threshold)
        variable.assign_sub(tf.cast(rate * update, variable.dtype))

    def _factors(
        self, gradient: tf.Tensor, variable: tf.Variable, step: tf.Tensor
    ) -> tf.Tensor:
        """1/√V, or what it is by broadcasting; updates the slots."""
        new_share = tf.pow(step, self.beta_2_decay)
        squares = tf.square(gradient) + self.epsilon_1
        slots = [slot.value for slot in self._slots[self._get_variable_index(variable)]]

        def updated(slot: tf.Variable, values: tf.Tensor) -> tf.Tensor:
            mean = (1.0 - new_share) * slot.read_value() + new_share * values
            slot.assign(mean)
            return mean

        if len(slots) == 1:
            return tf.math.rsqrt(updated(slots[0], squares))
        of_rows = updated(slots[0], tf.reduce_mean(squares, -1))
        of_columns = updated(slots[1], tf.reduce_mean(squares, -2))
        of_rows /= tf.reduce_mean(of_rows, -1, keepdims=True)
        rows, columns = tf.math.rsqrt(of_rows), tf.math.rsqrt(of_columns)
        return rows[..., tf.newaxis] * columns[..., tf.newaxis, :]

    def _slots_of(self, variable: tf.Variable) -> list[keras.Variable]:
        shape = list(variable.shape)
        shapes = {"velocity": shape}
        if len(shape) >= 2:
            shapes = {"rows": shape[:-1], "columns": [*shape[:-2], shape[-1]]}
        # As Keras names the slots of other optimizers.
        prefix = variable.name.replace("/", "_").replace(":", "_")
        dtype = _slot_dtype(variable).name
        with tf.device(variable.device):
            return [
                self.add_variable(tuple(sizes), dtype=dtype, name=f"{prefix}_{name}")
                for name, sizes in shapes.items()
            ]


def _slot_dtype(variable: tf.Variable) -> tf.DType:
    return variable.dtype if variable.dtype.size > 2 else tf.float32


def _rms(x: tf.Tensor) -> tf.Tensor:
    return tf.sqrt(tf.reduce_mean(tf.square(x)))
