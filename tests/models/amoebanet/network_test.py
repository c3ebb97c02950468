"""The list of layers: their order, their shapes and their costs."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from lingvo_pipe.core.nests import as_args
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.layers.core.model_size import layer_sizes, parameter_counts
from lingvo_pipe.layers.dropout import DropPathLayer
from lingvo_pipe.layers.sequential import SequentialLayer
from lingvo_pipe.models.amoebanet.cell import AmoebaCell
from lingvo_pipe.models.amoebanet.network import amoebanet
from lingvo_pipe.models.amoebanet.stem_and_head import AuxiliaryHeadLayer
from lingvo_pipe.models.images.auxiliary_classifier import AuxiliaryClassifierLayer
from tests.support.cases import exhaustive
from tests.support.errors import fails


def _auxiliary(**params: Any) -> InstantiableParams:
    return AuxiliaryClassifierLayer.Params().Set(
        classifier=AuxiliaryHeadLayer.Params().Set(**params), loss_weight=0.4
    )


def test_there_are_24_layers_for_18_cells() -> None:
    names = [p.name for p in amoebanet("D", 18, 8, 10)]
    assert len(names) == 24
    assert [n for n in names if n.startswith("reduction")] == [
        "reduction_6",
        "reduction_12",
    ]


@pytest.mark.parametrize("num_cells", [3, 9, 18])
def test_the_auxiliary_head_follows_two_thirds_of_the_cells(num_cells: int) -> None:
    with_head = amoebanet(
        "D", num_cells, 8, 10, auxiliary_tpl=_auxiliary(), image_shape=[96, 96]
    )
    names = [p.name for p in with_head]
    index = names.index("auxiliary_head")
    assert names[index - 1] == f"cell_{2 * num_cells // 3 - 1}"
    assert names[index + 1] == f"reduction_{2 * num_cells // 3}"
    del with_head[index]
    assert with_head == amoebanet("D", num_cells, 8, 10)


@pytest.mark.parametrize(
    ("image", "small_images", "index"),
    # After VALID 3x3/2 and three halvings, or after one; the pool is VALID 5x5/3.
    [(299, False, 5), (224, False, 4), (480, False, 9), (32, True, 4)],
)
def test_the_auxiliary_head_is_as_large_as_published(
    image: int, small_images: bool, index: int
) -> None:
    layers = amoebanet(
        "A",
        18,
        448,
        1001,
        small_images=small_images,
        auxiliary_tpl=_auxiliary(),
        image_shape=[image, image],
    )
    (head,) = [p for p in layers if p.name == "auxiliary_head"]
    channels = 2 * 448 * 4
    assert parameter_counts([head])[0] == sum(
        [channels * 51 + 2 * 51, index * index * 51 * 307 + 2 * 307, 307 * 1001 + 1001]
    )


@pytest.mark.parametrize(
    ("small_images", "num_others"), [exhaustive(False, 4), (True, 2)]
)
def test_drop_path_grows_with_depth(
    monkeypatch: pytest.MonkeyPatch, small_images: bool, num_others: int
) -> None:
    """Depths grow from cell to cell, in equal steps up to 1."""
    found: dict[str, float] = {}

    def note(layer: Any, theta: Any, x: tf.Tensor, depth: tf.Tensor) -> tf.Tensor:
        del theta
        cell = layer.parent.params.name
        assert found.setdefault(cell, float(depth)) == float(depth)
        return x

    monkeypatch.setattr(DropPathLayer, "FProp", note)
    params = amoebanet(
        "A", 6, 8, 10, small_images=small_images, drop_path_tpl=DropPathLayer.Params()
    )
    net = SequentialLayer.Params().Set(name="net", sub=params).Instantiate()
    with ForwardContext(step=0, first_example=0):
        net.FProp(net.theta, tf.ones([2, 8, 8, 3]))
    names = [p.name for p in params if p.cls is AmoebaCell]
    num_cells = 6 + num_others
    depths = [(i + 1) / num_cells for i in range(num_cells)]
    assert found == dict(zip(names, depths, strict=True))


def test_cells_at_all_depths_are_alike() -> None:
    """From the third cell after a reduction on, inputs are alike."""
    params = amoebanet("A", 18, 8, 10, drop_path_tpl=DropPathLayer.Params())
    cells = [p.Copy().Set(name="") for p in params if p.name.startswith("cell_")]
    for group in (cells[:6], cells[6:12], cells[12:]):
        assert group[2:] == group[2:3] * 4
        assert group[0] != group[1] != group[2]


def _cases(*images: tuple[bool, int]) -> list[Any]:
    """Returns genotypes with images, each genotype once in the fast suite, if small."""
    small = [image for image in images if image[0]]
    return [
        (genotype, *image)
        if small[i % len(small)] == image
        else exhaustive(genotype, *image)
        for i, genotype in enumerate("BACD")
        for image in images
    ]


@pytest.mark.parametrize(
    ("genotype", "small_images", "size"), _cases((False, 97), (True, 8), (True, 9))
)
def test_shapes_fit_from_image_to_logits(
    genotype: str, small_images: bool, size: int
) -> None:
    """This holds for odd sizes and filters too; both outputs cross every boundary."""
    params = amoebanet(
        genotype, 3, 14, 7, num_image_channels=2, small_images=small_images
    )
    outputs: Any = (tf.random.stateless_normal([2, size, size, 2], [1, 2]),)
    shapes: Any = ((2, size, size, 2),)
    layers = SequentialLayer.Params().Set(name="net", sub=params).Instantiate().sub
    with ForwardContext(do_eval=True):
        for p, layer in zip(params, layers, strict=True):
            outputs = as_args(layer.FProp(layer.theta, *outputs))
            shapes = p.cls.FPropMeta(p, *shapes).out_shapes
            found = tuple(None if x is None else tuple(x.shape) for x in outputs)
            assert found == shapes
            assert len(found) == (1 if p.name == "head" else 3)
    assert shapes == ((2, 7),)
    assert bool(tf.reduce_all(tf.math.is_finite(outputs[0])))


@pytest.mark.parametrize(
    ("genotype", "small_images", "size"), _cases((False, 224), (True, 32))
)
def test_costs_are_those_of_convolutions_and_little_more(
    genotype: str, small_images: bool, size: int
) -> None:
    params = amoebanet(genotype, 3, 208, 1001, small_images=small_images)
    sizes = layer_sizes(params, tf.TensorSpec([2, size, size, 3], tf.float32))
    for p, layer_size in zip(params, sizes, strict=True):
        assert 2 * layer_size.multiply_adds < layer_size.flops
        assert layer_size.flops < 2.4 * layer_size.multiply_adds or p.name == "head"


def test_labels_cross_up_to_the_auxiliary_head() -> None:
    layers = amoebanet("D", 3, 8, 5, auxiliary_tpl=_auxiliary(), image_shape=[80, 80])
    image, label = tf.TensorSpec([2, 80, 80, 3]), tf.TensorSpec([2], tf.int32)
    sizes = layer_sizes(layers, image, label, tf.TensorSpec([2]))
    index = [p.name for p in layers].index("auxiliary_head")
    num_outputs = [len(size.outputs) for size in sizes]
    assert num_outputs == [5] * index + [3] * 3 + [1]
    assert sizes[index].flops > 0


@pytest.mark.parametrize(
    ("arguments", "path", "got"),
    [
        (("D", 4, 8, 10), "num_cells", 4),
        (("D", 0, 8, 10), "num_cells", 0),
        (("D", 3, 7, 10), "num_filters", 7),
        (("D", 3, 1, 10, 3, True), "num_filters", 1),
        (("E", 3, 8, 10), "genotype", "E"),
    ],
)
def test_impossible_networks_are_refused(arguments: tuple, path: str, got: Any) -> None:
    with fails() as info:
        amoebanet(*arguments)
    assert str(info.value).startswith(f"{path}: ")
    assert f"got {got!r}" in str(info.value)


@pytest.mark.parametrize("genotype", ["A", "B", "C", "D"])
def test_the_narrowest_networks_can_be_built(genotype: str) -> None:
    for num_filters, small_images in ((8, False), (2, True)):
        layers = amoebanet(genotype, 3, num_filters, 2, small_images=small_images)
        assert min(parameter_counts(layers)) > 0


def test_auxiliary_heads_need_images_of_known_and_sufficient_size() -> None:
    with fails(path="image_shape", got=None):
        amoebanet("D", 3, 8, 10, auxiliary_tpl=_auxiliary())
    small = amoebanet("D", 3, 8, 10, auxiliary_tpl=_auxiliary(), image_shape=[64, 64])
    with fails(path="VALID window", got=5):
        parameter_counts(small)
    fitting = _auxiliary(pool_window=3, pool_stride=2)
    layers = amoebanet("D", 3, 8, 10, auxiliary_tpl=fitting, image_shape=[64, 64])
    assert min(parameter_counts(layers)) > 0
