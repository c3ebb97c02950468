"""The published Transformers: sizes, stages and training."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable
from typing import Any

import pytest
import tensorflow as tf

import model_registry
from lingvo_pipe.layers.core.model_size import layer_sizes, parameter_counts
from lingvo_pipe.layers.core.weights import WeightInit
from lingvo_pipe.models.transformer.transformer_layer import TransformerLayer
from lingvo_pipe.nested_map import NestedMap
from tests.support.cases import exhaustive

# Parameters, their text in the papers, and stages. GPipe's table 1 and section 5; the
# last is the bilingual Transformer-Big of 1907.05019.
PUBLISHED = {
    "lm.giant.L3": (282_178_816, "282.2M", 1),
    "lm.giant.L13": (785_761_536, "785.8M", 1),
    "lm.giant.L103": (5_318_006_016, "5.3B", 8),
    "lm.giant.L415": (21_029_786_880, "21.0B", 32),
    "lm.giant.L1663": (83_876_910_336, "83.9B", 128),
    "mt.multilingual.T_6_8192_16": (473_432_064, "473M", 1),
    "mt.multilingual.T_12_16384_32": (1_303_904_256, "1.3B", 2),
    "mt.multilingual.T_24_8192_16": (1_303_904_256, "1.3B", 4),
    "mt.multilingual.T_32_16384_32": (3_149_398_016, "3B", 8),
    "mt.multilingual.T_64_16384_32": (6_102_188_032, "6B", 16),
    "mt.wmt.TransformerBig": (375_128_064, "375M", 1),
}
SEVERAL_STAGES = [name for name, (*_, stages) in PUBLISHED.items() if stages > 1]
TRANSLATING = [name for name in PUBLISHED if name.startswith("mt.")]


@functools.cache
def _params(name: str) -> Any:
    return model_registry.GetParams(name, "Train")


def _as_printed(count: int, printed: str) -> str:
    """Returns a count with the printed number of digits."""
    unit = printed[-1]
    digits = len(printed.partition(".")[2].rstrip(unit))
    return f"{count / {'M': 1e6, 'B': 1e9}[unit]:.{digits}f}{unit}"


def _fast(names: Iterable[str]) -> list[Any]:
    """Returns names, with the deepest models left to the exhaustive suite."""
    deep = ("lm.giant.L415", "lm.giant.L1663", "mt.multilingual.T_64_16384_32")
    return [exhaustive(name) if name in deep else name for name in names]


@pytest.mark.parametrize("name", _fast(PUBLISHED))
def test_they_have_the_published_sizes(name: str) -> None:
    expected, printed, _ = PUBLISHED[name]
    assert sum(parameter_counts(_params(name).task.pipeline.cell_tpl)) == expected
    assert _as_printed(expected, printed) == printed


@pytest.mark.parametrize("name", _fast(PUBLISHED))
def test_they_have_the_published_number_of_stages(name: str) -> None:
    splits, num_stages = _params(name).task.pipeline.splits, PUBLISHED[name][2]
    assert splits == 1 if num_stages == 1 else len(splits) == num_stages


@pytest.mark.parametrize("name", _fast(SEVERAL_STAGES))
def test_stages_are_even_within_a_layer(name: str) -> None:
    model = _params(name)
    boundaries = model.task.pipeline.splits
    spec = model.input.Instantiate().element_spec
    one = spec.Transform(lambda leaf: tf.TensorSpec([1, *leaf.shape[1:]], leaf.dtype))
    state = one if name.startswith("mt.") else NestedMap(target=one)
    cells = model.task.pipeline.cell_tpl
    flops = [size.flops for size in layer_sizes(cells, state)]
    stages = [sum(flops[a:b]) for a, b in itertools.pairwise([0, *boundaries])]
    layers = [n for p, n in zip(cells, flops, strict=True) if p.cls is TransformerLayer]
    assert max(stages) - min(stages) <= max(layers)


@pytest.mark.exhaustive
def test_thirteen_layers_of_the_deepest_fill_an_accelerator() -> None:
    """Table 1 has L = 13·K, minus one where a stage includes the softmax."""
    for name in ("L103", "L415", "L1663"):
        pipeline = _params(f"lm.giant.{name}").task.pipeline
        lengths = [b - a for a, b in itertools.pairwise([0, *pipeline.splits])]
        assert lengths == [14, *[13] * (len(lengths) - 1)]  # The embedding is free.


@pytest.mark.parametrize("name", TRANSLATING)
def test_translations_are_learned_as_published(name: str) -> None:
    model = _params(name)
    train = model.task.train
    assert model.input.temperature == 5.0
    assert model.task.label_smoothing == 0.1
    assert train.optimizer.name == "Adafactor"
    assert train.clip_gradient_single_norm_to_value == 1.0
    assert train.lr_schedule.arguments["warmup_steps"] == 40_000
    # 3.0/√t from there on.
    assert train.learning_rate * 40_000**0.5 == pytest.approx(3.0)
    for p in model.task.pipeline.cell_tpl:
        if p.cls is TransformerLayer:
            assert p.keep_prob == 0.9
            num_layers = (len(model.task.pipeline.cell_tpl) - 3) // 2
            expected = WeightInit.Xavier(1.0 / num_layers)
            assert p.feed_forward_tpl.params_init == expected


def test_the_multilingual_models_read_102_languages_and_four_million_tokens() -> None:
    for name in TRANSLATING[:-1]:
        given = _params(name).input
        assert len({data.source_language for data in given.data}) == 102
        assert {data.target_language for data in given.data} == {"en"}
        # Packing fills some 98 % of each row.
        num_tokens = given.batch_size * given.target_length
        assert 0.98 * num_tokens == pytest.approx(4e6, rel=0.05)
        assert _params(name).task.pipeline.cell_tpl[-1].logits_soft_max is not None
