"""Every transform is pure, seeded, and of the shape it announces."""

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.input.transforms.colors import (
    Channels,
    ChromaShift,
    ColorDistortion,
    Normalization,
)
from lingvo_pipe.input.transforms.geometry import (
    CentralCrop,
    Cutout,
    PadAndCrop,
    RandomAreaCrop,
    RandomFlip,
    Resize,
)
from lingvo_pipe.input.transforms.image_transform import ImageTransform
from tests.input.transforms.many_seeds import random_image, seed
from tests.support.errors import fails

RANDOM = [
    RandomAreaCrop.Params(),
    RandomFlip.Params(),
    PadAndCrop.Params(),
    Cutout.Params().Set(size=5),
    ChromaShift.Params(),
    ColorDistortion.Params(),
]
FIXED = [
    CentralCrop.Params(),
    Resize.Params().Set(height=8, width=6),
    Normalization.Params(),
    Channels.Params().Set(channels=1),
]
KEEP_RANGE = [p for p in RANDOM + FIXED if p.cls is not Normalization]


def name(params):
    return params.cls.__name__


def apply(params, image, number):
    return params.Instantiate().Apply(tf.constant(image), seed(number)).numpy()


def test_none_is_left_out():
    pending, concrete = [ImageTransform], set()
    while pending:
        cls = pending.pop()
        pending += cls.__subclasses__()
        if "Apply" in vars(cls) or "Window" in vars(cls):
            concrete.add(cls.__name__)
    ours = concrete - {"ImageTransform", "CropTransform"}
    assert ours == {name(p) for p in RANDOM + FIXED}


@pytest.mark.parametrize("params", RANDOM + FIXED, ids=name)
def test_the_seed_determines_the_bytes(params):
    image = random_image(20, 30, 3)
    in_graph = tf.function(params.Instantiate().Apply)
    for number in range(5):
        once, again = apply(params, image, number), apply(params, image, number)
        assert once.tobytes() == again.tobytes()
        assert once.tobytes() == in_graph(image, seed(number)).numpy().tobytes()


@pytest.mark.parametrize("params", RANDOM, ids=name)
def test_seeds_differ(params):
    image = random_image(20, 30, 3)
    made = {apply(params, image, number).tobytes() for number in range(40)}
    assert len(made) == 2 if params.cls is RandomFlip else len(made) > 30


@pytest.mark.parametrize("params", FIXED, ids=name)
def test_seeds_do_not_matter(params):
    image = random_image(20, 30, 3)
    assert len({apply(params, image, number).tobytes() for number in range(9)}) == 1


@pytest.mark.parametrize(
    "params",
    [
        PadAndCrop.Params().Set(padding=0),
        Cutout.Params().Set(size=0),
        ChromaShift.Params().Set(max_luma=0, max_chroma=0),
        ColorDistortion.Params().Set(brightness=0, saturation=0, hue=0, contrast=0),
        Normalization.Params().Set(mean=0, stddev=1),
    ],
    ids=name,
)
def test_without_strength_it_is_the_identity(params):
    image = random_image(5, 4, 3)
    for number in range(3):
        np.testing.assert_array_equal(apply(params, image, number), image)


@pytest.mark.parametrize("params", RANDOM + FIXED, ids=name)
@pytest.mark.parametrize("size", [(20, 30), (30, 20), (9, 9), (8, 6), (1, 1)])
def test_the_shape_is_as_announced(params, size):
    transform = params.Instantiate()
    image = random_image(*size, 3)
    known, unknown = transform.OutputShape((*size, 3)), transform.OutputShape(
        (None, None, 3)
    )  # fmt: skip
    for number in range(5):
        made = transform.Apply(tf.constant(image), seed(number))
        assert made.dtype == tf.float32
        for shape in (known, unknown):
            assert made.shape.is_compatible_with(shape)


@pytest.mark.parametrize("params", KEEP_RANGE, ids=name)
def test_values_stay_from_0_to_1(params):
    for number in range(30):
        made = apply(params, random_image(9, 11, 3, number=number), number)
        assert made.min() >= 0
        assert made.max() <= 1


@pytest.mark.parametrize("params", RANDOM + FIXED, ids=name)
def test_the_image_is_left_as_it_was(params):
    image = random_image(20, 30, 3)
    before = image.copy()
    apply(params, image, 1)
    np.testing.assert_array_equal(image, before)


@pytest.mark.parametrize(
    ("cls", "name", "values"),
    [
        (Cutout, "size", [-1, 2.5, True]),
        (Cutout, "fill", [2, None]),
        (PadAndCrop, "padding", [-1]),
        (Resize, "height", [None, 0]),
        (CentralCrop, "fraction", [0, 1.1, "a"]),
        (ChromaShift, "max_luma", [-1, float("nan")]),
        (ColorDistortion, "hue", [0.6]),
        (ColorDistortion, "contrast", [-0.1, 1.1]),
        (Normalization, "mean", [None, []]),
        (Normalization, "stddev", [[1, 0], []]),
        (RandomAreaCrop, "area_range", [[0, 1], [0.5, 2], 0.5]),
        (RandomAreaCrop, "aspect_ratio_range", [[2, 1]]),
    ],
)
def test_params_out_of_range_are_refused(cls, name, values):
    for value in values:
        p = cls.Params()
        if cls is Resize:
            p.Set(height=8, width=8)
        with fails(path=f"{cls.__name__}.{name}", got=value):
            p.Set(**{name: value}).Instantiate()


@pytest.mark.parametrize("cls", [ChromaShift, ColorDistortion])
def test_colors_need_three_channels(cls):
    with fails(path=cls.__name__, got=1):
        cls.Params().Instantiate().OutputShape((8, 8, 1))
