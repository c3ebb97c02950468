"""Metrics in the memory of the process that reports them."""

import tensorflow as tf

from lingvo_pipe.nested_map import NestedMap


def on_this_host(metrics: NestedMap) -> NestedMap:
    """Copies a function's metrics to this process, as a part of the function.

    Each read of a tensor on a worker takes 2 KiB of the worker, which TensorFlow frees
    only when the trainer ends; a copy within a function takes none.
    """
    with tf.device("/CPU:0"):
        return tf.nest.map_structure(tf.identity, metrics)
