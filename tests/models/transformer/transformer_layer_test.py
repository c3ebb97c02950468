"""Single layers of encoder, decoder and language model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.layers.core.slicing import slices_of
from lingvo_pipe.models.transformer.network import language_model, translation_model
from lingvo_pipe.nested_map import NestedMap
from tests.models.transformer.small_models import (
    MODEL_DIM,
    packed,
    sentences,
    small_layer,
    small_sizes,
)
from tests.support.errors import fails

ENCODER, DECODER, ALONE = "encoder_1", "decoder_0", "layer_1"
every_layer = pytest.mark.parametrize("name", [ENCODER, DECODER, ALONE])


def layer(name: str, dtype: tf.DType = tf.float64, **sizes: Any) -> Any:
    make = language_model if name == ALONE else translation_model
    layers = {p.name: p for p in make(**small_sizes(**sizes))}
    return layers[name].Set(dtype=dtype).Instantiate()


def state(dtype: tf.DType = tf.float64) -> NestedMap:
    """Returns three rows: two packed sentences, one alone, and a full row."""
    streams = NestedMap()
    for i, (name, num_tokens) in enumerate({"source": 7, "target": 6}.items()):
        rows = [sentences([3, 2]), sentences([4]), sentences([num_tokens])]
        stream = packed(rows, num_tokens).Transform(tf.constant)
        stream.hidden = draw([3, num_tokens, MODEL_DIM], i, dtype)
        streams[name] = stream
    return streams


def draw(shape: Any, seed: int, dtype: tf.DType = tf.float64) -> tf.Tensor:
    return tf.random.stateless_normal(shape, [seed, 1], dtype=dtype)


def run(changed: Any, inputs: NestedMap, **context: Any) -> tf.Tensor:
    """Returns the layer's hidden states."""
    with ForwardContext(**{"step": 3, "first_example": 0, **context}):
        outputs = changed.FProp(changed.theta, inputs)
    return outputs[changed.params.stream].hidden


@every_layer
def test_everything_else_passes_unchanged(name: str) -> None:
    inputs, changed = state(), layer(name)
    outputs = changed.FProp(changed.theta, inputs)
    assert outputs.Keys() == inputs.Keys()
    for key, value in outputs.FlattenItems():
        is_new = key == f"{changed.params.stream}.hidden"
        assert (value is inputs.GetItem(key)) != is_new
        assert value.shape == inputs.GetItem(key).shape


@every_layer
@pytest.mark.parametrize("norm_first", [True, False])
def test_gradients_are_finite_differences(name: str, norm_first: bool) -> None:
    tpl = small_layer(norm_first=norm_first)
    changed, inputs = layer(name, layer_tpl=tpl), state()
    variables = tf.nest.flatten(changed.vars)
    hidden = [inputs.source.hidden, inputs.target.hidden]
    values = [*map(tf.convert_to_tensor, variables), *hidden]
    counts = draw([3, *inputs[changed.params.stream].hidden.shape[1:]], 9)

    @tf.function(autograph=False)
    def loss(*values: tf.Tensor) -> tf.Tensor:
        moved = inputs.DeepCopy()
        moved.source.hidden, moved.target.hidden = values[len(variables) :]
        theta = changed.vars.Pack(values[: len(variables)])
        outputs = changed.FProp(theta, moved)
        return tf.reduce_sum(outputs[changed.params.stream].hidden * counts)

    with tf.GradientTape() as tape:
        tape.watch(values)
        total = loss(*values)
    gradients = tape.gradient(total, values, unconnected_gradients="zero")
    for i, (value, gradient) in enumerate(zip(values, gradients, strict=True)):
        direction = draw(value.shape, i)
        sides = [
            loss(*values[:i], value + step * direction, *values[i + 1 :])
            for step in (-1e-6, 1e-6)
        ]
        slope = float(tf.reduce_sum(gradient * direction))
        difference = float((sides[1] - sides[0]) / 2e-6)
        assert slope == pytest.approx(difference, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("name", [DECODER, ALONE])
def test_what_comes_later_does_not_matter(name: str) -> None:
    changed, inputs = layer(name), state()
    before = run(changed, inputs)
    for t in range(6):
        moved = inputs.DeepCopy()
        later = draw([3, 6 - t, MODEL_DIM], 7 + t) * 10.0
        moved.target.hidden = tf.concat([inputs.target.hidden[:, :t], later], 1)
        after = run(changed, moved)
        np.testing.assert_array_equal(before[:, :t], after[:, :t])
        assert np.all(np.any(before[:, t] != after[:, t], -1))


def test_an_encoder_sees_what_comes_later() -> None:
    changed, inputs = layer(ENCODER), state()
    moved = inputs.DeepCopy()
    last = tf.one_hot(6, 7, dtype=tf.float64)[:, tf.newaxis]
    moved.source.hidden += last * draw([MODEL_DIM], 5)
    before, after = run(changed, inputs)[2], run(changed, moved)[2]
    assert np.all(np.any(before != after, -1))


@every_layer
@pytest.mark.parametrize("stream", ["source", "target"])
def test_padding_and_other_sentences_do_not_matter(name: str, stream: str) -> None:
    changed, inputs = layer(name), state()
    own = inputs[changed.params.stream].segment_ids
    moved = inputs.DeepCopy()
    others = (inputs[stream].segment_ids != 1)[..., tf.newaxis]
    noise = draw(inputs[stream].hidden.shape, 8) * 10.0
    moved[stream].hidden = tf.where(others, noise, inputs[stream].hidden)
    before, after = run(changed, inputs), run(changed, moved)
    np.testing.assert_array_equal(before[own == 1], after[own == 1])
    if stream == changed.params.stream:
        assert np.all(np.any(before[own != 1] != after[own != 1], -1))


@every_layer
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_no_number_in_one_example_is_not_spread(name: str, value: float) -> None:
    changed, inputs = layer(name, dropout_prob=0.1), state()
    moved = inputs.DeepCopy()
    spot = tf.reshape(tf.one_hot(1, 3, dtype=tf.float64), [3, 1, 1]) > 0
    for stream in moved.values():
        stream.hidden = tf.where(spot, tf.constant(value, tf.float64), stream.hidden)
    before, after = run(changed, inputs), run(changed, moved)
    np.testing.assert_array_equal(before[::2], after[::2])
    assert np.any(np.isnan(after[1]))


@pytest.mark.parametrize(
    ("name", "value"),
    [("stream", "tgt"), ("memory", "tgt"), ("memory", ""), ("memory", "target")],
)
def test_streams_are_known_and_distinct(name: str, value: str) -> None:
    p = small_layer(name="layer", model_dim=MODEL_DIM, causal=True, **{name: value})
    sliced = slices_of(p, {"feed_forward": 2})[0].Set(name="layer")
    for params in (p, sliced):
        with fails(path=f"layer.{name}", got=value):
            params.Instantiate()


def test_a_layer_that_hides_no_token_may_attend_to_its_stream_as_a_memory() -> None:
    p = small_layer(name="layer", model_dim=MODEL_DIM, memory="target")
    p.feed_forward_tpl.hidden_dim = 5
    assert p.Instantiate().params.memory == p.stream
