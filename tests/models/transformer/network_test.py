"""The published sizes, counted from Params alone."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.layers.core.model_size import layer_sizes, parameter_counts
from lingvo_pipe.layers.core.place_reads import PlaceReads
from lingvo_pipe.layers.core.weights import WeightInit
from lingvo_pipe.models.transformer.logits import LogitsLayer
from lingvo_pipe.models.transformer.network import (
    language_model,
    plain_layer,
    tied_embeddings,
    translation_model,
)
from lingvo_pipe.nested_map import NestedMap
from tests.models.transformer.small_models import (
    alone,
    sentences,
    small_layer,
    small_sizes,
    translation_batch,
    translation_task,
)
from tests.support.errors import fails


def _num_parameters(layers: list[InstantiableParams]) -> int:
    """Counts a model with many layers alike, each kind once."""
    kinds: dict[str, InstantiableParams] = {}
    number: collections.Counter[str] = collections.Counter()
    for p in layers:
        nameless = p.Copy().Set(name="")
        kind = nameless.ToText()
        kinds[kind] = nameless
        number[kind] += 1
    assert len(kinds) <= 7
    counts = parameter_counts(list(kinds.values()))
    return sum(number[kind] * n for kind, n in zip(kinds, counts, strict=True))


@pytest.mark.parametrize(
    ("num_layers", "count"),
    # Those that are registered have a test there.
    [(24, 1_339_702_528), (48, 2_548_301_056), (156, 7_986_994_432)],
)
def test_language_models_have_the_published_sizes(num_layers: int, count: int) -> None:
    layers = language_model(num_layers)
    assert len(layers) == num_layers + 2
    assert _num_parameters(layers) == count


def test_many_layers_are_counted_as_each_by_itself() -> None:
    layers = language_model(13)
    assert sum(parameter_counts(layers)) == _num_parameters(layers)


@pytest.mark.parametrize("sizes", [(6, 8192, 16), (2, 16384, 32)])
def test_translation_models_have_the_sizes_of_the_formula(
    sizes: tuple[int, int, int],
) -> None:
    """GPipe's T(L, H, A): 12·1024·64·A + 4·1024·H for each L, and three tables."""
    num_layers, hidden_dim, num_heads = sizes
    layers = translation_model(*sizes, num_tokens=1000)
    assert len(layers) == 2 * num_layers + 3
    of_layers = num_layers * (12 * 1024 * 64 * num_heads + 4 * 1024 * hidden_dim)
    assert _num_parameters(layers) == of_layers + 3 * 1000 * 1024


def test_biases_and_norms_are_the_rest() -> None:
    """4 + 8 biases of attention, 2 · 2 of feed-forward parts, 2 · 5 of norms."""
    plain = _num_parameters(translation_model(6, 8192, 16, 64_000))
    p = plain_layer()
    p.attention_tpl.has_bias = p.feed_forward_tpl.has_bias = True
    p.norm_tpl.has_scale = p.norm_tpl.has_bias = True
    whole = _num_parameters(translation_model(6, 8192, 16, 64_000, layer_tpl=p))
    assert whole - plain == 6 * ((12 + 2 + 10) * 1024 + 2 * 8192)


def test_costs_are_mostly_products_with_weights_and_of_queries_with_keys() -> None:
    """A token costs 2 flops per weight, and 4 per channel of attention and key."""
    numbers = tf.TensorSpec([8, 32], tf.int32)
    stream = NestedMap(ids=numbers, segment_ids=numbers, segment_pos=numbers)
    layers = translation_model(2, 512, 4, 1000, model_dim=128)
    sizes = layer_sizes(layers, NestedMap(source=stream, target=stream))
    weights = parameter_counts(layers)
    weights[0] = weights[3] = 0  # embeddings are looked up
    num_tokens, channels, num_keys = 8 * 32, 4 * 64, [0, 32, 32, 0, 64, 64, 0]
    for size, n, keys in zip(sizes, weights, num_keys, strict=True):
        products = num_tokens * (2 * n + 4 * channels * keys)
        assert size.multiply_adds == products // 2
        assert products <= size.flops <= 1.05 * products + 6 * num_tokens * 128


def test_a_tied_table_is_one_variable() -> None:
    task = translation_task(tied=True).Instantiate()
    paths = list(task.VariablePaths())
    tables = [path for path in paths if path.endswith(("embedding/w", "logits/w"))]
    assert tables == ["task/pipeline/source_embedding/embedding/w"]
    assert tied_embeddings(language_model(**small_sizes())) == {
        "logits/w": "embedding/embedding/w"
    }


def test_a_users_logits_are_tied_too() -> None:
    class OwnLogits(LogitsLayer):
        """A user's softmax."""

    cells = language_model(**{**small_sizes(), "logits_tpl": OwnLogits.Params()})
    assert tied_embeddings(cells) == {"logits/w": "embedding/embedding/w"}


def test_the_feed_forward_parts_start_smaller_by_the_number_of_layers() -> None:
    def first_values(num_layers: int, **layer: Any) -> dict[str, np.ndarray]:
        sizes = small_sizes(num_layers=num_layers, layer_tpl=small_layer(**layer))
        p = language_model(**sizes)[1].Set(name="layer")
        return {k: v.numpy() for k, v in p.Instantiate().VariablePaths().items()}

    one, four = first_values(1), first_values(4)
    for path, value in four.items():
        scaled = path.endswith(("expand/w", "contract/w"))
        share = 0.25 if scaled else 1.0
        np.testing.assert_allclose(value, share * one[path], rtol=1e-6, err_msg=path)
    assert sum(path.endswith("w") for path in one) == 6


def test_a_given_initial_rule_stays() -> None:
    layer = small_layer()
    layer.feed_forward_tpl.params_init = WeightInit.Gaussian(0.5)
    p = language_model(**small_sizes(layer_tpl=layer))[1]
    assert p.feed_forward_tpl.params_init == WeightInit.Gaussian(0.5)


@pytest.mark.parametrize("norm_first", [True, False])
def test_the_last_layers_end_with_a_norm_where_norms_are_first(
    norm_first: bool,
) -> None:
    sizes = small_sizes(layer_tpl=small_layer(norm_first=norm_first))
    layers = translation_model(**sizes)
    normed = [p.name for p in layers if _has_final_norm(p)]
    assert normed == (["encoder_1", "decoder_1"] if norm_first else [])


def _has_final_norm(p: InstantiableParams) -> bool:
    return "final_norm_tpl" in p and p.final_norm_tpl is not None


@pytest.mark.parametrize("make", [translation_model, language_model])
def test_no_layers_are_refused(make: Any) -> None:
    with fails(path="num_layers", got=0):
        make(**small_sizes(num_layers=0))


def test_cells_read_no_place() -> None:
    """Alike cells can then share a trace."""
    p, rows = translation_task(dropout_prob=0.1), alone(sentences([4, 3]))
    task, reads = p.Instantiate(), PlaceReads()
    (state,) = task.PipelineInputs(translation_batch(rows, rows))
    for cell in task.pipeline.cells:
        theta = cell.theta
        with ForwardContext(step=3, first_example=0), reads.recording(cell):
            state = cell.FProp(theta, state)
    assert not reads.paths
    assert not reads.names
