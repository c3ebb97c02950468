"""Transforms of colors and values."""

import numpy as np
import pytest

from lingvo_pipe.input.transforms.colors import ChromaShift, Normalization
from tests.input.transforms.many_seeds import apply_many, random_image
from tests.support.errors import fails

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


def test_chroma_shift_without_strength_is_the_identity():
    image = random_image(5, 4, 3)
    none = ChromaShift.Params().Set(max_luma=0, max_chroma=0).Instantiate()
    np.testing.assert_array_equal(apply_many(none, image, 3), [image] * 3)


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_chroma_shift_clips_values(value):
    extreme = np.full([1, 1, 3], value, np.float32)
    made = apply_many(ChromaShift.Params().Instantiate(), extreme, 100)
    assert 0 <= made.min() < made.max() <= 1
    assert (made == value).sum() > 100


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


def test_normalization_by_0_and_1_is_the_identity():
    image = random_image(3, 4, 3)
    np.testing.assert_array_equal(normalized(image, mean=0, stddev=1), image)


def test_too_few_numbers_of_channels_are_refused():
    transform = Normalization.Params().Set(mean=[0.1, 0.2]).Instantiate()
    with fails(path="Normalization.mean", got=[0.1, 0.2]):
        transform.OutputShape((8, 8, 3))
