"""AmoebaNet against the published sizes, and counts made from the public code."""

from __future__ import annotations

import math
from typing import Any

import pytest
import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.base_layer import BaseLayer
from lingvo_pipe.layers.batch_norm import BatchNormLayer
from lingvo_pipe.layers.forward_context import ForwardContext
from lingvo_pipe.layers.sequential import SequentialLayer, as_args
from lingvo_pipe.models.amoebanet.cell import AmoebaCell
from lingvo_pipe.models.amoebanet.genotype import GENOTYPES, CellGenotype
from lingvo_pipe.models.amoebanet.network import amoebanet
from lingvo_pipe.models.amoebanet.operations import Channels, operation


def _build(params: list[InstantiableParams]) -> list[BaseLayer]:
    """The layers, in a scratch graph: nothing is allocated."""
    with tf.Graph().as_default():
        sequence = SequentialLayer.Params().Set(name="net", sub=params)
        return sequence.Instantiate().sub


def _num_trained(layer: BaseLayer) -> int:
    variables = layer.VariablePaths().values()
    return sum(math.prod(v.shape) for v in variables if v.trainable)


@pytest.mark.parametrize(
    ("num_cells", "num_filters", "num_classes", "count"),
    [
        (3, 16, 10, 99_503),
        (6, 32, 10, 672_242),
        (18, 208, 1001, 81_140_766),
        (18, 416, 1001, 317_548_353),
        (18, 544, 1001, 540_204_945),
        (36, 544, 1001, 1_053_302_481),
        (72, 512, 1001, 1_842_618_441),
        (18, 256, 1001, 121_915_113),
    ],
)
def test_amoebanet_d_has_the_published_number_of_parameters(
    num_cells: int, num_filters: int, num_classes: int, count: int
) -> None:
    """GPipe's table 1 has 82M, 318M, 542M, 1.05B and 1.8B."""
    layers = _build(amoebanet("D", num_cells, num_filters, num_classes))
    assert sum(map(_num_trained, layers)) == count


def test_each_layer_has_its_share_of_parameters() -> None:
    layers = _build(amoebanet("D", 3, 16, 10))
    found = [_num_trained(layer) for layer in layers]
    assert found == [928, 389, 672, 2320, 6736, 11552, 29216, 45120, 2570]


def test_there_are_24_layers_for_18_cells() -> None:
    names = [p.name for p in amoebanet("D", 18, 8, 10)]
    assert len(names) == 24
    assert [n for n in names if n.startswith("reduction")] == [
        "reduction_6",
        "reduction_12",
    ]


@pytest.mark.parametrize(("small_images", "size"), [(False, 97), (True, 8), (True, 9)])
def test_shapes_fit_from_image_to_logits(small_images: bool, size: int) -> None:
    """Odd sizes too; both outputs cross every boundary."""
    layers = _build_eagerly(
        amoebanet("D", 3, 16, 7, num_image_channels=2, small_images=small_images)
    )
    outputs: tuple = (tf.random.stateless_normal([2, size, size, 2], [1, 2]),)
    with ForwardContext(do_eval=True):
        for layer in layers[:-1]:
            outputs = layer.FProp(layer.theta, *outputs)
            assert len(outputs) == 2
        logits = layers[-1].FProp(layers[-1].theta, *outputs)
    assert logits.shape == [2, 7]
    assert bool(tf.reduce_all(tf.math.is_finite(logits)))


@pytest.mark.parametrize(
    ("small_images", "size"), [(False, 224), (False, 97), (True, 32), (True, 9)]
)
def test_costs_and_shapes_are_known_before_anything_is_built(
    small_images: bool, size: int
) -> None:
    """Beside the convolutions, counted in the graph, there are only small things."""
    params = amoebanet("D", 3, 208, 1001, small_images=small_images)
    shapes: Any = ((2, size, size, 3),)
    with tf.Graph().as_default() as graph, ForwardContext(do_eval=True):
        outputs: Any = (tf.compat.v1.placeholder(tf.float32, *shapes),)
        for p in params:
            layer = p.Instantiate()
            first_op = len(graph.get_operations())
            outputs = as_args(layer.FProp(layer.theta, *outputs))
            convolutions = sum(map(_flops, graph.get_operations()[first_op:]))
            meta = p.cls.FPropMeta(p, *shapes)
            shapes = meta.out_shapes
            found = tuple(None if x is None else tuple(x.shape) for x in outputs)
            assert shapes == found
            assert convolutions < meta.flops < 1.2 * convolutions or p.name == "head"
    assert shapes == ((2, 1001),)


def _flops(op: tf.Operation) -> int:
    if op.type != "Conv2D":
        return 0
    return 2 * math.prod(op.inputs[1].shape[:3]) * math.prod(op.outputs[0].shape)


def test_a_cell_is_the_sum_its_genotype_says() -> None:
    """The normal cell of D, written out by hand."""
    p = AmoebaCell.Params().Set(name="cell", num_filters=4, num_in=6, num_in_before=4)
    cell = p.Instantiate()
    last = tf.random.stateless_normal([2, 5, 5, 6], [1, 2])
    before = tf.random.stateless_normal([2, 5, 5, 4], [3, 4])
    theta, run = cell.theta, cell.children

    def op(name: str, x: tf.Tensor) -> tf.Tensor:
        return run[name].FProp(theta[name], x)

    with ForwardContext(do_eval=True):
        output, handed_on = cell.FProp(theta, last, before)
        s0, s1 = op("project", last), before
        s2 = op("left_2", s1) + op("right_2", s1)
        s3 = s1 + op("right_3", s0)
        s4 = op("left_4", s0) + op("right_4", s0)
        s5 = op("left_5", s2) + s2
        s6 = op("left_6", s1) + op("right_6", s5)
    assert bool(tf.reduce_all(output == tf.concat([s0, s3, s4, s6], -1)))
    assert handed_on is last
    assert bool(tf.reduce_all(op("right_2", s1) == tf.nn.max_pool2d(s1, 3, 1, "SAME")))


def test_genotypes_are_complete() -> None:
    for genotype in GENOTYPES.values():
        for cell in genotype:
            assert isinstance(cell, CellGenotype)
            assert len(cell.pairs) == 5
            used = {edge.state for pair in cell.pairs for edge in pair}
            assert all(
                edge.state < i + 2 for i, pair in enumerate(cell.pairs) for edge in pair
            )
            assert used | set(cell.concat) >= set(range(2, 7)), "no state is lost"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("D", 4, 8, 10), "num_cells must be a positive multiple of 3; got 4"),
        (("D", 0, 8, 10), "num_cells must be a positive multiple of 3; got 0"),
        (("D", 3, 6, 10), "num_filters must be positive, and a multiple of 4"),
        (("E", 3, 8, 10), r"genotype must be one of \['D'\]; got 'E'"),
    ],
)
def test_impossible_networks_are_refused(arguments: tuple, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        amoebanet(*arguments)


def test_unknown_and_too_narrow_operations_are_refused() -> None:
    norm = BatchNormLayer.Params()
    with pytest.raises(ValueError, match="operation must be one of .* got '5x5'"):
        operation("5x5", Channels(8, 8, norm), 1)
    with pytest.raises(ValueError, match="at least 4 filters; got 2"):
        operation("3x3", Channels(8, 2, norm), 1)


def _build_eagerly(params: list[InstantiableParams]) -> list[BaseLayer]:
    return SequentialLayer.Params().Set(name="net", sub=params).Instantiate().sub
