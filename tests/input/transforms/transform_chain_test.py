"""Chains: one after the other, each with numbers of its own."""

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.input.transforms.colors import Normalization
from lingvo_pipe.input.transforms.geometry import (
    CentralCrop,
    PadAndCrop,
    RandomAreaCrop,
    RandomFlip,
    Resize,
)
from lingvo_pipe.input.transforms.transform_chain import (
    TransformChain,
    fitting_chain,
)
from tests.input.transforms.many_seeds import random_image, run_chain, seed
from tests.support.errors import fails

IMAGE = random_image(12, 16, 3)
HALF = CentralCrop.Params().Set(fraction=0.5)
RESIZE = Resize.Params().Set(height=8, width=8)


def test_an_empty_chain_changes_nothing():
    np.testing.assert_array_equal(run_chain([], IMAGE), IMAGE)


@pytest.mark.parametrize(
    "templates",
    [
        [HALF, RESIZE, Normalization.Params()],
        [RESIZE, HALF, Normalization.Params()],
        [HALF, HALF],
    ],
)
def test_it_is_one_after_the_other(templates):
    expected = tf.constant(IMAGE)
    for template in templates:
        expected = template.Instantiate().Apply(expected, seed(0))
    np.testing.assert_array_equal(run_chain(templates, IMAGE), expected)
    assert TransformChain(templates, IMAGE.shape).output_shape == expected.shape


def test_only_an_initial_crop_is_separate():
    crop, flip = RandomAreaCrop.Params(), RandomFlip.Params()
    chains = {
        True: [[crop], [crop, flip], [crop, crop]],
        False: [[], [flip], [flip, crop]],
    }
    for is_first, templates in chains.items():
        for chain in templates:
            choose = TransformChain(chain, (None, None, 3)).first_window(seed(0))
            assert (choose is not None) == is_first


def test_transforms_have_numbers_of_their_own():
    # The place of a single pixel tells how far the image was moved.
    dot = np.zeros([17, 17, 1], np.float32)
    dot[8, 8] = 1
    move = PadAndCrop.Params().Set(padding=4, fill=0)
    places: dict[int, list] = {1: [], 2: []}
    for number in range(60):
        for length, found in places.items():
            (place,) = np.argwhere(run_chain([move] * length, dot, number)[..., 0])
            found.append(place - 8)
    first, both = np.array(places[1]), np.array(places[2])
    second = both - first
    assert np.abs(second).max() <= 4, "the first moves as it does alone"
    assert (second != first).any(1).mean() > 0.8


def test_the_shape_is_known_where_it_can_be():
    def shape(*templates):
        return TransformChain(templates, (None, None, 3)).output_shape

    assert shape() == (None, None, 3)
    assert shape(RandomAreaCrop.Params()) == (None, None, 3)
    assert shape(RandomAreaCrop.Params(), RESIZE, RandomFlip.Params()) == (8, 8, 3)


@pytest.mark.parametrize("template", [RandomFlip, None, InstantiableParams(dict)])
def test_what_is_no_transform_is_refused(template):
    with fails(got=template):
        TransformChain([template], (8, 8, 3))


@pytest.mark.parametrize(
    ("templates", "shape", "size", "channels", "words"),
    [
        ([], (12, 16, 3), None, None, ()),
        ([], (12, 16, 3), (12, 16), 3, ()),
        ([RESIZE], (None, None, 3), (8, 8), 3, ()),
        ([], (None, None, 3), (8, 6), None, ("8 x 6",)),
        ([], (12, 16, 3), (8, 6), 1, ("8 x 6", "1 channel")),
        ([RESIZE], (None, None, 1), (8, 8), 3, ("3 channel",)),
        ([PadAndCrop.Params()], (None, None, 3), (8, 6), 3, ("8 x 6",)),
    ],
)
def test_only_missing_conversions_are_added(templates, shape, size, channels, words):
    chain = fitting_chain(templates, shape, size, channels)
    height, width = size or shape[:2]
    assert chain.output_shape == (height, width, channels or shape[2])
    assert bool(chain.conversion) == bool(words)
    assert all(word in chain.conversion for word in words)
    image = random_image(12, 16, shape[2])
    made = chain.apply_after_window(tf.constant(image), seed(0))
    assert made.shape == chain.output_shape
    if not words:
        plain = TransformChain(templates, shape)
        same = plain.apply_after_window(tf.constant(image), seed(0))
        np.testing.assert_array_equal(made, same)


def test_gray_is_the_same_in_all_channels_and_back():
    gray = tf.constant(random_image(5, 6, 1))
    rgb = fitting_chain([], gray.shape, None, 3).apply_after_window(gray, seed(0))
    np.testing.assert_array_equal(rgb, np.repeat(gray, 3, axis=2))
    back = fitting_chain([], rgb.shape, None, 1).apply_after_window(rgb, seed(0))
    np.testing.assert_allclose(back, gray, atol=2e-4)


def test_channels_that_cannot_be_converted_are_refused():
    with fails(path="Channels.channels", got=3):
        fitting_chain([], (None, None, 4), None, 3)
