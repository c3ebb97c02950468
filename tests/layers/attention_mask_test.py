from __future__ import annotations

import numpy as np
import tensorflow as tf

from lingvo_pipe.layers.attention_mask import not_later, same_segment

SEGMENTS = np.array([[1, 1, 2, 0], [1, 1, 1, 1]])
MEMORY = np.array([[1, 2, 2], [1, 0, 0]])


def test_a_query_sees_its_own_segment() -> None:
    mask = same_segment(tf.constant(SEGMENTS), tf.constant(MEMORY))
    assert mask.shape == (2, 1, 4, 3)
    for b, t, s in np.ndindex(2, 4, 3):
        assert bool(mask[b, 0, t, s]) == (SEGMENTS[b, t] == MEMORY[b, s])


def test_a_query_sees_no_later_key() -> None:
    np.testing.assert_array_equal(not_later(4), np.tri(4, dtype=bool))
