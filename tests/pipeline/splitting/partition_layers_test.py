"""Partitions of a sequence of layers compute what the sequence does."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.core.nests import as_args
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.builder_layers import FnLayer
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.core.model_size import layer_sizes
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.layers.sequential import (
    FeatureExtractionLayer,
    FetchLayer,
    SeqLayer,
    SequentialLayer,
)
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from lingvo_pipe.pipeline.splitting.balance import balanced_boundaries
from lingvo_pipe.pipeline.splitting.partition_layers import PartitionSequentialLayers
from tests.support.errors import fails

SHAPE = (4, 3)


def dense(num_in: int = 3, num_out: int = 3, **params: Any) -> InstantiableParams:
    p = FCLayer.Params().Set(input_dim=num_in, output_dim=num_out, activation="TANH")
    return p.Set(**params)


def sequence(*sub: InstantiableParams, **params: Any) -> InstantiableParams:
    return SequentialLayer.Params().Set(sub=list(sub), **params)


def features(*sub: InstantiableParams, **params: Any) -> InstantiableParams:
    return FeatureExtractionLayer.Params().Set(sub=list(sub), **params)


NESTED = sequence(
    dense(3, 5),
    sequence(
        dense(5, 7, dtype=tf.float64),
        sequence(dense(7, 7), repeat=2, fprop_dtype=tf.float64),
        sequence(),
        dense(7, 2),
        random_seed=4,
    ),
    features(dense(2, 3, name="x"), dense(3, 4), variable_name_prefix="p_"),
    dense(4, 3),
    name="net",
)
WITH_FETCHES = features(
    dense(name="a"),
    sequence(dense(3, 3), dense(3, 9), name="b"),
    FetchLayer.Params().Set(name="c"),
    dense(9, 2),
    variable_name_prefix="s_",
    num_act_inputs=1,
    act_fetch_layers=["s_a", "s_b", "s_c"],
    name="net",
)
WITHIN = sequence(
    dense(3, 4),
    features(
        dense(4, 4, name="here"), dense(4, 4), act_fetch_layers=["here"], name="f"
    ),
    features(dense(4, 2), num_act_inputs=1),
    name="net",
)
REPEATED = sequence(dense(), dense(has_bias=False), repeat=3, name="net")
WHOLES: dict[str, tuple[Any, Any, int]] = {
    "nested": (NESTED, [SHAPE], 9),
    "with fetches": (WITH_FETCHES, [SHAPE, (1,)], 5),
    "activations within": (WITHIN, [SHAPE], 3),
    "repeated": (REPEATED, [SHAPE], 6),
    "one layer": (dense(name="net"), [SHAPE], 1),
}
CASES = [
    (name, num_partitions)
    for name, (_, _, num_layers) in WHOLES.items()
    for num_partitions in range(1, num_layers + 1)
]


def costs(layers: list[InstantiableParams], *inputs: Any) -> tuple[Any, Any]:
    """Returns the flops of layers, and the numbers of elements that they pass on."""
    sizes = layer_sizes(layers, *inputs)
    return [x.flops for x in sizes], [x.output_elements for x in sizes]


def normal(shapes: Any) -> list[tf.Tensor]:
    return [tf.random.stateless_normal(s, [i, 2]) for i, s in enumerate(shapes)]


def instantiated(partitions: list[InstantiableParams]) -> list[BaseLayer]:
    return SeqLayer.Params().Set(name="net", cell_tpl=partitions).Instantiate().cells


def chained(layers: list[BaseLayer], inputs: Any) -> Any:
    outputs: Any = tuple(inputs)
    for layer in layers:
        outputs = layer(*as_args(outputs))
    return outputs


def share_weights(whole: BaseLayer, partitions: list[BaseLayer]) -> None:
    """Sets the partitions' variables; both are in the order of creation."""
    variables = [v for part in partitions for v in part.VariablePaths().values()]
    for mine, other in zip(whole.VariablePaths().values(), variables, strict=True):
        assert mine.dtype == other.dtype
        assert mine.shape == other.shape
        other.assign(mine)


@pytest.mark.parametrize(("name", "num_partitions"), CASES)
def test_partitions_compute_what_the_whole_does(name: str, num_partitions: int) -> None:
    p, shapes, num_layers = WHOLES[name]
    before = p.Copy()
    whole = p.Instantiate()
    partitions = PartitionSequentialLayers(p, num_partitions, *shapes)
    assert p == before
    assert [part.name for part in partitions] == [
        f"d{i}" for i in range(num_partitions)
    ]
    assert {part.cls for part in partitions} == {FeatureExtractionLayer}
    layers = instantiated(partitions)
    share_weights(whole, layers)
    inputs = normal(shapes)
    outputs, expected = chained(layers, inputs), whole(*inputs)
    tf.nest.assert_same_structure(outputs, expected)
    tf.nest.map_structure(np.testing.assert_array_equal, outputs, expected)
    flops, _ = costs(partitions, *shapes)
    assert sum(flops) == p.cls.FPropMeta(p, *shapes).flops
    finest = costs(PartitionSequentialLayers(p, num_layers, *shapes), *shapes)
    boundaries = balanced_boundaries(finest[0], num_partitions, finest[1])
    assert [len(part.sub) for part in partitions] == [
        b - a for a, b in itertools.pairwise([0, *boundaries])
    ]


@pytest.mark.parametrize(("num_layers", "num_partitions"), [(16, 4), (24, 4), (4, 4)])
def test_equal_layers_make_equal_partitions(
    num_layers: int, num_partitions: int
) -> None:
    """Lingvo left one empty or uneven for each of these."""
    layers = [dense() for _ in range(num_layers)]
    partitions = PartitionSequentialLayers(sequence(*layers), num_partitions, SHAPE)
    assert [len(p.sub) for p in partitions] == (
        [num_layers // num_partitions] * num_partitions
    )
    names = [sub.name for p in partitions for sub in p.sub]
    assert names == [f"cell_{i:03d}" for i in range(num_layers)]


def test_of_equal_cuts_the_one_with_the_smallest_outputs_is_chosen() -> None:
    layers = [dense(8, 8), dense(8, 64), dense(64, 4), dense(4, 8), dense(8, 8)]
    partitions = PartitionSequentialLayers(layers, 2, (1, 8))
    assert [len(p.sub) for p in partitions] == [2, 3]
    layers[1:3] = [dense(8, 8), dense(8, 8)]
    layers[3] = sequence(dense(8, 1), dense(1, 8))
    rng = random.Random(0)
    rng.shuffle(layers)
    flops, passed_on = costs(layers, (1, 8))
    partitions = PartitionSequentialLayers(layers, 3, (1, 8))
    sizes = [len(p.sub) for p in partitions]
    assert list(itertools.accumulate(sizes)) == balanced_boundaries(flops, 3, passed_on)


def test_the_layers_of_a_list_stay_whole() -> None:
    layers = [sequence(dense(), dense()), dense(), features(dense(), dense())]
    partitions = PartitionSequentialLayers(layers, 3, SHAPE)
    assert [[sub.cls for sub in p.sub] for p in partitions] == [
        [SequentialLayer],
        [FCLayer],
        [FeatureExtractionLayer],
    ]


def test_partitions_can_be_partitioned_again() -> None:
    p, shapes, _ = WHOLES["with fetches"]
    once = PartitionSequentialLayers(p, 5, *shapes)
    again = PartitionSequentialLayers(once, 2, *shapes)
    whole, layers = p.Instantiate(), instantiated(again)
    share_weights(whole, layers)
    inputs = normal(shapes)
    outputs = chained(layers, inputs)
    tf.nest.map_structure(np.testing.assert_array_equal, outputs, whole(*inputs))


def test_a_pipeline_of_partitions_computes_what_a_seq_layer_does() -> None:
    partitions = PartitionSequentialLayers(NESTED, 3, SHAPE)
    plain = SeqLayer.Params().Set(name="net", cell_tpl=partitions).Instantiate()
    pipeline = (
        PipeliningLayer.Params()
        .Set(name="net", cell_tpl=partitions, num_micro_batches=2)
        .Instantiate()
    )
    assert list(pipeline.VariablePaths()) == list(plain.VariablePaths())
    (x,) = normal([SHAPE])
    np.testing.assert_allclose(pipeline(x), plain(x), rtol=1e-6)


def test_activations_out_of_order_are_refused() -> None:
    p = WITH_FETCHES.Copy().Set(act_fetch_layers=["s_b", "s_a"])
    with fails(path="act_fetch_layers", got=["s_b", "s_a"]):
        PartitionSequentialLayers(p, 2, SHAPE, (1,))


def test_layers_that_can_not_be_partitioned_are_refused() -> None:
    wrong: Any
    with pytest.raises(ValueError, match=r"\b1\D*\b6\D*\b7\b"):
        PartitionSequentialLayers(REPEATED, 7, SHAPE)
    p = WITH_FETCHES.Copy().Set(act_fetch_layers=["s_x"])
    with pytest.raises(
        ValueError, match=r"\bnet\b.*\bact_fetch_layers\b.*\['s_a', .*'s_x'"
    ):
        PartitionSequentialLayers(p, 2, SHAPE, (1,))
    for wrong, given in (("net", "'net'"), ([dense(), None], r", None\]")):
        with pytest.raises(ValueError, match=rf"(?s)\bParams\b.*{given}"):
            PartitionSequentialLayers(wrong, 1, SHAPE)
    with fails(path="layers[1], FeatureExtractionLayer 'd1'") as info:
        PartitionSequentialLayers([dense(), BaseLayer.Params()], 2, SHAPE)
    assert "BaseLayer.FProp" in info.value.hint


def test_integers_may_be_mixed_with_numbers() -> None:
    layers = [FnLayer.Params().Set(fn=tf.gather), dense()]
    specs = tf.TensorSpec(SHAPE), tf.TensorSpec([5], tf.int32)
    partitions = PartitionSequentialLayers(layers, 2, *specs)
    assert [len(p.sub) for p in partitions] == [1, 1]
