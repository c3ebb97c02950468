"""Rates of moving averages: TensorFlow 1's, and in the long run the decay's."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.layers.averaging_rate import averaging_rate


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.9, 0.9999])
def test_the_rate_is_the_larger_of_two(decay: float) -> None:
    for n in (1, 2, 9, 80, 89_990, 10**9):
        want = 1.0 - min(decay, (1 + n) / (10 + n))
        np.testing.assert_allclose(averaging_rate(decay, tf.constant(n)), want, 1e-9)


def test_a_short_run_forgets_what_it_began_with() -> None:
    """As a long one does, but in steps in proportion to those there were."""
    kept = 1.0
    for n in range(1, 21):
        kept *= 1.0 - float(averaging_rate(0.9999, n))
    assert kept < 1e-6
