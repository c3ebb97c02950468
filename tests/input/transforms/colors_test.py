"""Transforms of colors and values."""

import colorsys

import numpy as np
import pytest

from lingvo_pipe.input.transforms import colors
from lingvo_pipe.input.transforms.colors import (
    ChromaShift,
    ColorDistortion,
    Normalization,
)
from tests.input.transforms.many_seeds import apply_many, random_image
from tests.support.errors import fails

NONE = {"brightness": 0, "saturation": 0, "hue": 0, "contrast": 0}
# Far enough from 0 and 1 that nothing is cut off.
IMAGE = 0.4 + 0.2 * random_image(3, 4, 3)


def distorted(num_seeds=300, **values):
    params = ColorDistortion.Params().Set(**{**NONE, **values})
    return apply_many(params.Instantiate(), IMAGE, num_seeds)


def check_spread(numbers, minimum, maximum):
    assert minimum - 1e-3 <= numbers.min() < minimum + 0.1 * (maximum - minimum)
    assert maximum - 0.1 * (maximum - minimum) < numbers.max() <= maximum + 1e-3
    assert abs(numbers.mean() - (minimum + maximum) / 2) < 0.1 * (maximum - minimum)


def hsv(images):
    pixels = images.reshape(-1, 3)
    return np.array([colorsys.rgb_to_hsv(*rgb) for rgb in pixels]).reshape(images.shape)


def test_brightness_adds_a_number():
    added = distorted(brightness=0.1) - IMAGE
    assert np.ptp(added, axis=(1, 2, 3)).max() < 1e-6
    check_spread(added[:, 0, 0, 0], -0.1, 0.1)


def test_contrast_scales_the_distance_from_each_channels_mean():
    made = distorted(contrast=0.5)
    mean = IMAGE.mean((0, 1))
    np.testing.assert_allclose(made.mean((1, 2)), [mean] * 300, atol=1e-5)
    factors = (made - mean) / (IMAGE - mean)
    assert np.ptp(factors, axis=(1, 2, 3)).max() < 1e-2
    check_spread(factors.mean((1, 2, 3)), 0.5, 1.5)


def test_saturation_is_scaled_and_hue_and_value_stay():
    made, before = hsv(distorted(100, saturation=0.5)), hsv(IMAGE)
    np.testing.assert_allclose(made[..., 2], [before[..., 2]] * 100, atol=1e-5)
    turned = (made[..., 0] - before[..., 0] + 0.5) % 1 - 0.5
    assert np.abs(turned).max() < 1e-3
    factors = made[..., 1] / before[..., 1]
    assert np.ptp(factors, axis=(1, 2)).max() < 1e-2
    check_spread(factors.mean((1, 2)), 0.5, 1.5)


def test_hue_is_turned_and_saturation_and_value_stay():
    made, before = hsv(distorted(100, hue=0.2)), hsv(IMAGE)
    np.testing.assert_allclose(made[..., 1:], [before[..., 1:]] * 100, atol=1e-4)
    turned = (made[..., 0] - before[..., 0] + 0.5) % 1 - 0.5
    assert np.ptp(turned, axis=(1, 2)).max() < 1e-2
    check_spread(turned.mean((1, 2)), -0.2, 0.2)


def test_each_change_has_a_number_of_its_own():
    brightness = (distorted(brightness=0.1) - IMAGE).mean((1, 2, 3))
    contrast = distorted(contrast=0.5).std((1, 2, 3))
    saturation = hsv(distorted(saturation=0.5))[..., 1].mean((1, 2))
    numbers = np.corrcoef([brightness, contrast, saturation])
    # The standard deviation of each is 0.06.
    assert np.abs(numbers - np.eye(3)).max() < 0.25


def test_each_of_four_orders_comes_up_as_often(monkeypatch):
    orders = colors._ORDERS
    assert len({frozenset(order) for order in orders}) == 1
    strengths = {"brightness": 0.1, "saturation": 0.5, "hue": 0.2, "contrast": 0.5}
    made = distorted(400, **strengths)
    counts = []
    for order in orders:
        monkeypatch.setattr(colors, "_ORDERS", [order] * 4)
        is_same = (distorted(400, **strengths) == made).all((1, 2, 3))
        counts.append(is_same.sum())
    assert sum(counts) == 400
    # The standard deviation of each count is 9.
    assert min(counts) > 60


@pytest.mark.parametrize("value", [0.0, 1.0])
@pytest.mark.parametrize("cls", [ColorDistortion, ChromaShift])
def test_values_are_clipped(cls, value):
    extreme = np.full([1, 1, 3], value, np.float32)
    images = apply_many(cls.Params().Instantiate(), extreme, 100)
    assert 0 <= images.min() < images.max() <= 1
    assert (images == value).sum() > 100


# ITU-R BT.601.
LUMA = np.array([0.299, 0.587, 0.114])


def shifts(**values):
    """[1000, 3]: what is added to red, green and blue."""
    grey = np.full([2, 3, 3], 0.5, np.float32)
    made = apply_many(ChromaShift.Params().Set(**values).Instantiate(), grey, 1000)
    assert (made == made[:, :1, :1]).all(), "all pixels get the same"
    return made[:, 0, 0] - 0.5


def check_uniform(numbers, maximum):
    assert np.abs(numbers).max() <= maximum + 1e-6
    counts, _ = np.histogram(numbers, bins=5, range=(-maximum, maximum))
    # The standard deviation of each count is 13.
    assert counts.min() > 140
    assert counts.max() < 260


def test_luma_and_chroma_are_uniform_within_their_limits():
    added = shifts(max_luma=0.1, max_chroma=0.05)
    luma = added @ LUMA
    check_uniform(luma, 0.1)
    check_uniform((added[:, 2] - luma) / 1.772, 0.05)
    check_uniform((added[:, 0] - luma) / 1.402, 0.05)


def test_luma_alone_keeps_tints_and_chroma_alone_keeps_luma():
    np.testing.assert_allclose(np.ptp(shifts(max_chroma=0), axis=1), 0, atol=1e-6)
    np.testing.assert_allclose(shifts(max_luma=0) @ LUMA, 0, atol=1e-6)


def normalized(image, **values):
    params = Normalization.Params().Set(**values)
    return apply_many(params.Instantiate(), image, 1)[0]


def test_0_to_1_becomes_minus_1_to_1():
    image = np.array([0, 0.25, 0.5, 1], np.float32).reshape(2, 2, 1)
    assert normalized(image).ravel().tolist() == [-1, -0.5, 0, 1]


def test_channels_may_differ():
    image = random_image(3, 4, 3)
    mean, stddev = [0.1, 0.2, 0.3], [0.5, 1, 2]
    made = normalized(image, mean=mean, stddev=stddev)
    np.testing.assert_allclose(made, (image - mean) / stddev, rtol=1e-5, atol=1e-6)
    mixed = normalized(image, mean=0.1, stddev=stddev)
    np.testing.assert_allclose(mixed, (image - 0.1) / stddev, rtol=1e-5, atol=1e-6)


def test_too_few_numbers_of_channels_are_refused():
    transform = Normalization.Params().Set(mean=[0.1, 0.2]).Instantiate()
    with fails(path="Normalization.mean", got=[0.1, 0.2]):
        transform.OutputShape((8, 8, 3))
