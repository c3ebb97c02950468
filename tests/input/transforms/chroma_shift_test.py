"""The shift of brightness and tint: one for all pixels, within its limits."""

import numpy as np
import pytest

from lingvo_pipe.input.transforms.chroma_shift import ChromaShift
from tests.input.transforms.many_seeds import apply_many, random_image

# ITU-R BT.601.
LUMA = np.array([0.299, 0.587, 0.114])


def shifts(**values):
    """[1000, 3]: what is added to red, green and blue."""
    grey = np.full([2, 3, 3], 0.5, np.float32)
    made = apply_many(ChromaShift.Params().Set(**values).Instantiate(), grey, 1000)
    assert (made == made[:, :1, :1]).all(), "all pixels get the same"
    return made[:, 0, 0] - 0.5


def check_uniform(numbers, most):
    assert np.abs(numbers).max() <= most + 1e-6
    counts, _ = np.histogram(numbers, bins=5, range=(-most, most))
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


def test_without_strength_it_is_the_identity():
    image = random_image(5, 4, 3)
    none = ChromaShift.Params().Set(max_luma=0, max_chroma=0).Instantiate()
    np.testing.assert_array_equal(apply_many(none, image, 3), [image] * 3)


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_what_leaves_the_range_is_cut_off(value):
    extreme = np.full([1, 1, 3], value, np.float32)
    made = apply_many(ChromaShift.Params().Instantiate(), extreme, 100)
    assert 0 <= made.min() < made.max() <= 1
    assert (made == value).sum() > 100
