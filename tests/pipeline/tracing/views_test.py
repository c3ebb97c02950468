"""The buffers behind tensors, some of which are views of others."""

from __future__ import annotations

import tensorflow as tf

from lingvo_pipe.pipeline.tracing.views import buffers_of, origin


def test_views_share_a_buffer() -> None:
    with tf.Graph().as_default():
        args = [tf.compat.v1.placeholder(tf.float32, [2, 3]) for _ in range(2)]
        flat = tf.reshape(args[1], [-1])
        own = tf.square(args[0])
        made = [tf.expand_dims(own, 0), tf.tanh(own)]
        late = tf.exp(made[1])
        found = buffers_of([flat, own, tf.identity(late), late, args[1]], args, made)
        assert origin(tf.identity(flat)) is args[1]
        assert origin(tf.identity_n([own, flat])[1]) is args[1]
    assert found.args == [1]
    assert found.made == [0]
    assert found.own == [late]
    assert found.indices == [1, 2, 0, 0, 1]
