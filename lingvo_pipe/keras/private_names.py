"""The private names of Keras that this package leans on; no other file imports any.

Keras's public interface says how to run a model, and not which operations it consists
of. `tests/keras/private_names_test.py` shows that each name exists and does what is
expected of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
from keras.src import backend
from keras.src.models.functional import Functional, operation_fn
from keras.src.random import seed_generator

get_mask = backend.get_keras_mask
set_mask = backend.set_keras_mask
compute_output_spec = backend.compute_output_spec

_GRAPH_CALLS = (Functional.call, keras.Sequential.call, keras.Model.call)


def is_graph(operation: Any) -> bool:
    """Returns True if a model is run node by node, as the graph of its layers says."""
    return (
        isinstance(operation, (Functional, keras.Sequential))
        and type(operation).call in _GRAPH_CALLS
    )


def graph_of(model: keras.Model) -> Functional:
    """Returns the functional model that a Sequential or functional model runs."""
    return model._functional if isinstance(model, keras.Sequential) else model


def nodes_in_order(graph: Functional) -> Iterator[Any]:
    """Yields the nodes in the order in which Keras runs them, without the inputs."""
    for depth in sorted(graph._nodes_by_depth, reverse=True):
        yield from (n for n in graph._nodes_by_depth[depth] if not n.is_input)


def standardized_inputs(graph: Functional, inputs: Any) -> list[Any]:
    """Returns a model's inputs flat, in its order, dtypes and ranks."""
    return graph._standardize_inputs(inputs)


def output_structure(graph: Functional) -> Any:
    """Returns the structure of a model's outputs."""
    return graph._outputs_struct


def run_operation(operation: Any, training: bool, args: Any, kwargs: Any) -> Any:
    """Calls a layer or another operation of a graph."""
    return operation_fn(operation, training=training)(*args, **kwargs)


def flat_layers(layer: keras.Layer) -> list[keras.Layer]:
    """Returns a layer and all layers below it."""
    return list(layer._flatten_layers())


def forget_losses(layer: keras.Layer) -> None:
    """Drops the losses that a call of a layer has added."""
    layer._clear_losses()


def global_seed() -> keras.Variable:
    """Returns the state from which draws without a SeedGenerator take their seeds."""
    return seed_generator.global_seed_generator().state


def place_variable(variable: keras.Variable, value: Any) -> None:
    """Makes a tf.Variable the storage of a Keras variable."""
    variable._value = value


def stored_variable(variable: keras.Variable) -> Any:
    """Returns the tf.Variable that stores a Keras variable."""
    return variable._value


def flat_losses(compiled: Any) -> list[Any]:
    """Returns the losses of a compiled loss, one for each output that has one."""
    return [each.loss for each in compiled._flat_losses]


def compiled_metrics(compiled: Any) -> list[keras.Metric]:
    """Returns the metrics of a compilation."""
    return list(compiled.metrics)
