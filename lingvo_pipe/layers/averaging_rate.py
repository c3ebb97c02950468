"""How much of the newest value a moving average takes in.

    average ← average + rate(n) · (value - average)
    rate(n) = max(1 - decay, 9 / (10 + n)) = 1 - min(decay, (1 + n) / (10 + n))

after the n-th training step. The second rate is the larger at first, so that averages
of a short run do not hang on what they began with. It is that of
`ExponentialMovingAverage(decay, num_updates=n)` of TensorFlow 1, by which Lingvo and
AmoebaNet (tf/tpu, amoeba_net) average weights.

Batch norm's moments are averaged so too. An evaluation with averaged weights is right
only if they are averages over the same steps: a layer whose variance is that of other
weights scales its outputs wrongly, and so does each layer behind it.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def averaging_rate(decay: float, num_steps: Any) -> tf.Tensor:
    """The rate of a step, [] float64.

    Args:
        decay: what a step leaves of an average, in the long run.
        num_steps: n, [] integer: how many steps were trained, the last included.
    """
    early = 9.0 / (10.0 + tf.cast(num_steps, tf.float64))
    return tf.maximum(tf.constant(1.0 - decay, tf.float64), early)
