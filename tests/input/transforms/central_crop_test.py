"""The central crop: the middle, as TensorFlow cuts it out."""

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.input.transforms.central_crop import CentralCrop
from tests.input.transforms.many_seeds import random_image, seed

SIZES = [(1, 1), (2, 3), (7, 8), (31, 32), (375, 500)]


def apply(image, fraction):
    crop = CentralCrop.Params().Set(fraction=fraction).Instantiate()
    return crop.Apply(tf.constant(image), seed(0)).numpy()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("fraction", [0.1, 0.5, 0.875, 0.99])
def test_it_is_tensorflows(size, fraction):
    image = random_image(*size, 3)
    expected = tf.image.central_crop(image, fraction).numpy()
    np.testing.assert_array_equal(apply(image, fraction), expected)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("fraction", [0.1, 0.875, 1])
def test_the_announced_shape_is_exact(size, fraction):
    crop = CentralCrop.Params().Set(fraction=fraction).Instantiate()
    made = apply(random_image(*size, 3), fraction)
    assert crop.OutputShape((*size, 3)) == made.shape


def test_all_of_it_is_the_identity():
    image = random_image(7, 8, 3)
    np.testing.assert_array_equal(apply(image, 1), image)
