"""The distortion of colours: each change by itself, and the order of all."""

import colorsys

import numpy as np
import pytest

from lingvo_pipe.input.transforms import color_distortion
from lingvo_pipe.input.transforms.color_distortion import ColorDistortion
from tests.input.transforms.many_seeds import apply_many, random_image

NONE = {"brightness": 0, "saturation": 0, "hue": 0, "contrast": 0}
# Far enough from 0 and 1 that nothing is cut off.
IMAGE = 0.4 + 0.2 * random_image(3, 4, 3)


def distorted(num_seeds=300, **values):
    params = ColorDistortion.Params().Set(**{**NONE, **values})
    return apply_many(params.Instantiate(), IMAGE, num_seeds)


def check_spread(numbers, least, most):
    assert least - 1e-3 <= numbers.min() < least + 0.1 * (most - least)
    assert most - 0.1 * (most - least) < numbers.max() <= most + 1e-3
    assert abs(numbers.mean() - (least + most) / 2) < 0.1 * (most - least)


def hsv(images):
    pixels = images.reshape(-1, 3)
    return np.array([colorsys.rgb_to_hsv(*rgb) for rgb in pixels]).reshape(images.shape)


def test_without_strength_it_is_the_identity():
    np.testing.assert_array_equal(distorted(3), [IMAGE] * 3)


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
    orders = color_distortion._ORDERS
    assert len({frozenset(order) for order in orders}) == 1
    strengths = {"brightness": 0.1, "saturation": 0.5, "hue": 0.2, "contrast": 0.5}
    made = distorted(400, **strengths)
    counts = []
    for order in orders:
        monkeypatch.setattr(color_distortion, "_ORDERS", [order] * 4)
        is_same = (distorted(400, **strengths) == made).all((1, 2, 3))
        counts.append(is_same.sum())
    assert sum(counts) == 400
    # The standard deviation of each count is 9.
    assert min(counts) > 60


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_what_leaves_the_range_is_cut_off(value):
    extreme = np.full([1, 1, 3], value, np.float32)
    made = apply_many(ColorDistortion.Params().Instantiate(), extreme, 100)
    assert 0 <= made.min() < made.max() <= 1
    assert (made == value).sum() > 100
