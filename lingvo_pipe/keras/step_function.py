"""A step of fit, evaluate or predict, as Keras calls it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from keras import tree

from lingvo_pipe.core.nests import spec_of


def step_function(
    step: Callable[[Any], Any],
    run_eagerly: bool,
    prepare: Callable[[Any], None] = lambda data: None,
) -> Callable[[Iterator[Any]], Any]:
    """Returns a function of an iterator that takes a step on its next element.

    Args:
        step: function of a mini-batch.
        run_eagerly: whether to run it without a graph.
        prepare: called with each mini-batch before the step.
    """
    traced: dict[Any, Callable] = {}

    def run(iterator: Iterator[Any]) -> Any:
        data = tree.map_structure(
            lambda x: None if x is None else tf.convert_to_tensor(x),
            next(iter(iterator)),
        )
        prepare(data)
        if run_eagerly:
            return step(data)
        key = tuple(x if x is None else spec_of(x) for x in tree.flatten(data))
        if key not in traced:
            # Each shape has its own graph. If one tf.function held them all, TensorFlow
            # would warn of retracing.
            function = tf.function(step, autograph=False)
            traced[key] = function.get_concrete_function(data)
        return traced[key](data)

    return run
