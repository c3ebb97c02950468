"""Optimizers whose Keras versions differ, or fail for plain TensorFlow variables."""

from typing import Any

import keras
import tensorflow as tf

from lingvo_pipe.core.nests import wide_dtype


class Adafactor(keras.optimizers.Adafactor):
    """Adafactor (Shazeer and Stern, 1804.04235, algorithms 4 to 6) per variable.

        ρ = the schedule's rate, or without one min(learning_rate, 1/√t)
        α = ρ·max(ε₂, RMS(w))           steps are relative to the weights
        β = 1 - t^-0.8
        matrices:  R ← β·R + (1 - β)·mean over each row of (g² + ε₁)
                   C ← β·C + (1 - β)·mean over each column of (g² + ε₁)
                   V = R·C / mean(R)
        vectors:   V ← β·V + (1 - β)·(g² + ε₁)
        u = g/√V;  u ← u / max(1, RMS(u)/d)
        w ← w - α·u

    for step t = 1, 2, ... A tensor of higher rank is a batch of matrices, which are its
    last two dimensions. A matrix of n·m weights has n + m numbers of state: R and C.
    Slots of 16-bit variables have 32 bits.

    The paper's rate is `learning_rate=0.01`. GShard's translations (2006.16668) add the
    schedule `InverseSquareRoot`. `relative_step=False` drops the bound of 1/√t, so that
    a rate without a schedule is constant. The arguments are Keras's.

    Keras's Adafactor cannot be used. It names slots after variables, and fails for the
    names of plain TensorFlow variables. It creates R and C on any device, and also
    stores V, which is as large as the variable. It bounds the rate by 1/√t even with a
    schedule or `relative_step=False`.
    """

    def build(self, var_list: list[tf.Variable]) -> None:
        """Creates the slots of all variables, each on its variable's `slot_device`."""
        # The parent's own method would create its slots.
        keras.optimizers.Optimizer.build(self, var_list)
        for variable in var_list:
            self.slots_of(variable).extend(self._create_slots(variable))

    def update_step(
        self, gradient: tf.Tensor, variable: tf.Variable, learning_rate: Any
    ) -> None:
        """Updates a variable and its slots."""
        dtype = wide_dtype(variable.dtype)
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
        """Updates the slots and returns 1/√V, in the gradient's shape."""
        new_share = tf.pow(step, self.beta_2_decay)
        squares = tf.square(gradient) + self.epsilon_1
        slots = [slot.value for slot in self.slots_of(variable)]

        def updated(slot: tf.Variable, values: tf.Tensor) -> tf.Tensor:
            mean = (1.0 - new_share) * slot.read_value() + new_share * values
            slot.assign(mean)
            return mean

        # Keras's own slots, such as accumulated gradients, come before these.
        if variable.shape.rank < 2:
            return tf.math.rsqrt(updated(slots[-1], squares))
        row_means = updated(slots[-2], tf.reduce_mean(squares, -1))
        column_means = updated(slots[-1], tf.reduce_mean(squares, -2))
        row_means /= tf.reduce_mean(row_means, -1, keepdims=True)
        rows, columns = tf.math.rsqrt(row_means), tf.math.rsqrt(column_means)
        return rows[..., tf.newaxis] * columns[..., tf.newaxis, :]

    def _create_slots(self, variable: tf.Variable) -> list[keras.Variable]:
        shape = list(variable.shape)
        shapes = {"velocity": shape}
        if len(shape) >= 2:
            shapes = {"rows": shape[:-1], "columns": [*shape[:-2], shape[-1]]}
        # Keras names the slots of other optimizers in this way.
        prefix = variable.name.replace("/", "_").replace(":", "_")
        dtype = wide_dtype(variable.dtype).name
        with tf.device(self.slot_device(variable)):
            return [
                self.add_variable(tuple(sizes), dtype=dtype, name=f"{prefix}_{name}")
                for name, sizes in shapes.items()
            ]


class RMSpropFromOnes(keras.optimizers.RMSprop):
    """RMSProp of TensorFlow 1 and Lingvo, as in AmoebaNet, Inception and MobileNet.

        s ← ρ·s + (1 - ρ)·g²                s starts at 1
        m ← momentum·m + rate·g / √(s + ε)  m starts at 0
        w ← w - m

    Keras's `RMSprop` also has ε inside the root, but starts with s = 0. That makes the
    first steps longer, by a factor of up to √1.9 for AmoebaNet's ρ = 0.9 and ε = 1
    (tf/tpu, amoeba_net).
    """

    def add_optimizer_variables(
        self, trainable_variables: Any, name: Any, initializer: Any = "zeros"
    ) -> Any:
        """Creates slots. `velocity`, the average of squared gradients, starts at 1."""
        return super().add_optimizer_variables(
            trainable_variables, name, "ones" if name == "velocity" else initializer
        )


def _rms(x: tf.Tensor) -> tf.Tensor:
    return tf.sqrt(tf.reduce_mean(tf.square(x)))
