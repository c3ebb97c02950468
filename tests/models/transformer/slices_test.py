"""A Transformer's layers in slices compute what the whole layers do."""

from __future__ import annotations

import pytest
import tensorflow as tf

from lingvo_pipe.core.nests import map_present, spec_of
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core.model_size import layer_sizes
from lingvo_pipe.layers.core.slicing import slices_of
from lingvo_pipe.models.transformer.logits import LogitsLayer, token_metrics
from lingvo_pipe.models.transformer.network import plain_layer
from lingvo_pipe.models.transformer.streams import StreamEmbeddingLayer, plain_norm
from lingvo_pipe.models.transformer.transformer_layer import TransformerLayer
from lingvo_pipe.nested_map import NestedMap
from tests.layers.sliced_layers import (
    assert_costs_add_up,
    assert_same,
    compute,
    layers_of,
)
from tests.support.cases import exhaustive

DIM, NUM_TOKENS = 6, 17
_LAYER = TransformerLayer.Params().Set(model_dim=DIM, keep_prob=0.8, causal=True)
_LAYER.attention_tpl.Set(num_heads=8, dim_per_head=2, keep_prob=0.9)
_LAYER.feed_forward_tpl.Set(hidden_dim=16, keep_prob=0.9)
_DECODER = _LAYER.Copy().Set(memory="source", final_norm_tpl=plain_norm())
_ENCODER = plain_layer().Set(stream="source", model_dim=DIM, norm_first=False)
_ENCODER.attention_tpl.Set(num_heads=8, dim_per_head=3)
_ENCODER.feed_forward_tpl.Set(hidden_dim=16)
_LOGITS = LogitsLayer.Params().Set(num_tokens=NUM_TOKENS, model_dim=DIM, has_bias=True)
LAYERS = {
    "language model": _LAYER,
    "decoder": _DECODER,
    "encoder": _ENCODER,
    "embedding": StreamEmbeddingLayer.Params().Set(
        num_tokens=NUM_TOKENS, model_dim=DIM, keep_prob=0.8
    ),
    "logits": _LOGITS,
    "clipped logits": _LOGITS.Copy().Set(logits_soft_max=0.5, logits_abs_max=0.4),
}


def _state(name: str, dtype: tf.DType) -> NestedMap:
    def stream(seed: int, num_tokens: int) -> NestedMap:
        ids = tf.random.stateless_uniform(
            [2, num_tokens], [seed, 1], maxval=NUM_TOKENS, dtype=tf.int32
        )
        shape = [2, num_tokens, DIM]
        return NestedMap(
            ids=ids,
            segment_ids=tf.constant([[1] * (num_tokens - 2) + [2, 2]] * 2),
            segment_pos=tf.range(num_tokens)[tf.newaxis] * tf.ones([2, 1], tf.int32),
            labels=tf.roll(ids, -1, 1),
            hidden=tf.random.stateless_normal(shape, [seed, 2], dtype=dtype),
        )

    state = NestedMap(source=stream(1, 5), target=stream(2, 4))
    if name == "embedding":
        del state.target.hidden
    return state


def _loss(logits: tf.Tensor, state: NestedMap) -> tf.Tensor:
    labels = state.target.labels
    weights = tf.constant([[1.0, 1.0, 0.0, 1.0], [1.0, 2.0, 1.0, 0.0]])
    metrics = token_metrics(logits, labels, weights, 0.1)
    return tf.add_n([pair[0] for pair in metrics.values()])


@pytest.mark.parametrize("dtype", [exhaustive(tf.float32), tf.float64])
@pytest.mark.parametrize(
    "num_slices", [exhaustive(1), exhaustive(2), 3, 8, {"feed_forward": 3}]
)
@pytest.mark.parametrize("name", LAYERS)
def test_slices_are_the_layer(
    name: str, num_slices: int | dict[str, int], dtype: tf.DType
) -> None:
    p: InstantiableParams = LAYERS[name].Copy().Set(dtype=dtype, random_seed=5)
    if isinstance(num_slices, dict) and p.cls is not TransformerLayer:
        num_slices = {"embedding": 5} if name == "embedding" else 17
    state = _state(name, dtype)
    loss = None
    if p.cls is LogitsLayer:
        loss = lambda outputs: _loss(outputs, state)  # noqa: E731
    want = compute(layers_of(p, None), [state], loss)
    tolerance = 1e-12 if dtype == tf.float64 else 1e-6
    layers = layers_of(p, num_slices)
    assert_same(compute(layers, [state], loss), want, tolerance)


@pytest.mark.parametrize("name", [name for name in LAYERS if "logits" not in name])
def test_slices_cost_what_the_layer_does_and_a_sum(name: str) -> None:
    max_ratio = 3.0 if name == "embedding" else 1.2
    assert_costs_add_up(LAYERS[name], 3, [_state(name, tf.float32)], max_ratio)


def test_slices_of_logits_pass_on_sums_alone() -> None:
    state = map_present(spec_of, _state("logits", tf.float32))
    *_, last = layer_sizes(slices_of(_LOGITS, 3), state)
    assert {tuple(x.shape) for x in last.outputs[0].values()} == {(2, 4)}


@pytest.mark.parametrize("label", [-1, NUM_TOKENS])
def test_a_label_outside_of_the_vocabulary_fails(label: int) -> None:
    state = _state("logits", tf.float32)
    state.target.labels = tf.fill([2, 4], label)
    with pytest.raises(tf.errors.InvalidArgumentError):
        compute(layers_of(_LOGITS, 3), [state], lambda x: tf.reduce_sum(x.label))
