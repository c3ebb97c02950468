"""Checks of Keras models and compilations that a pipeline cannot run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.keras.private_names import flat_layers, graph_of, is_graph

# What they make of an example depends on others of the mini-batch.
_MIXING = ("MixUp", "CutMix", "MelSpectrogram")
_LOOKUPS = (
    "TextVectorization",
    "StringLookup",
    "IntegerLookup",
    "Hashing",
    "HashedCrossing",
)


def check_model(model: Any) -> None:
    """Raises ValueError unless a model can be cut into cells."""
    if not isinstance(model, keras.Model):
        raise UserValueError(
            path="PipelinedModel", expected="a keras.Model", got=type(model).__name__
        )
    if not is_graph(model):
        raise UserValueError(
            path=f"model {model.name!r}",
            expected="a Sequential or functional model, whose layers can be told apart",
            got=f"{type(model).__name__} with a call method of its own",
            hint="Write it as keras.Model(inputs, outputs), or put what call does into "
            "layers of a functional model.",
        )
    if not model.built:
        raise UserValueError(
            path=f"model {model.name!r}",
            expected="a built model",
            got="a Sequential model without an input shape",
            hint="Begin it with keras.Input(shape).",
        )
    if type(model).train_step is not keras.Model.train_step:
        raise UserValueError(
            path=f"model {model.name!r}",
            expected="keras.Model's own train_step",
            got=f"{type(model).__name__}.train_step",
            hint="Express it by the loss, add_loss, metrics and the optimizer.",
        )
    if tf.distribute.has_strategy():
        raise UserValueError(
            path="PipelinedModel",
            expected="no tf.distribute strategy",
            got=type(tf.distribute.get_strategy()).__name__,
            hint="Use num_replicas for pipelines side by side.",
        )
    fixed = [
        x.name for x in graph_of(model).inputs if x.shape and x.shape[0] is not None
    ]
    if fixed:
        raise UserValueError(
            path=f"inputs {fixed}",
            expected="any number of examples",
            got="a fixed batch size",
            hint="Use keras.Input(shape) without batch_size: micro-batches are smaller "
            "than the mini-batch.",
        )
    for layer in flat_layers(model):
        _check_layer(layer)


def check_compilation(jit_compile: Any, options: Mapping[str, Any]) -> None:
    """Raises ValueError for options of compile that a pipeline cannot follow."""
    if jit_compile not in (False, "auto", None):
        raise UserValueError(
            path="compile(jit_compile=...)",
            expected="False or 'auto'",
            got=jit_compile,
            hint="Give jit_compile=True to PipelinedModel: XLA then compiles cells.",
        )
    if options.get("steps_per_execution", 1) != 1:
        raise UserValueError(
            path="compile(steps_per_execution=...)",
            expected="1",
            got=options["steps_per_execution"],
            hint="Raise num_micro_batches, or the size of the mini-batch.",
        )


def _check_layer(layer: keras.Layer) -> None:
    name = type(layer).__name__
    if name in _MIXING:
        raise UserValueError(
            path=f"layer {layer.name!r}",
            expected="layers that treat examples one by one",
            got=f"{name}, which looks at the whole mini-batch",
            hint="Apply it to the dataset, before fit.",
        )
    if name in _LOOKUPS:
        raise UserValueError(
            path=f"layer {layer.name!r}",
            expected="layers without lookup tables",
            got=name,
            hint="Apply it to the dataset, before fit.",
        )
