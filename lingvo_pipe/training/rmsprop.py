"""RMSProp as AmoebaNet, Inception and MobileNet were trained with it.

    s ← ρ·s + (1 - ρ)·g²                s starts at 1
    m ← momentum·m + rate·g / √(s + ε)  m starts at 0
    w ← w - m

That is `RMSPropOptimizer` of TensorFlow 1, and of Lingvo. Keras's `RMSprop` has ε in
the same place, inside the root, but starts with s = 0, which makes the first steps
longer: for ρ = 0.9 and ε = 1 (tf/tpu, amoeba_net) by a factor of up to √1.9.
"""

from __future__ import annotations

from typing import Any

import keras


class RMSpropFromOnes(keras.optimizers.RMSprop):
    """Keras's RMSprop whose averages of squares start at 1, as TensorFlow 1's did."""

    def add_optimizer_variables(
        self, trainable_variables: Any, name: Any, initializer: Any = "zeros"
    ) -> Any:
        """Creates slots; those of averages of squares, `velocity`, hold ones."""
        return super().add_optimizer_variables(
            trainable_variables, name, "ones" if name == "velocity" else initializer
        )
