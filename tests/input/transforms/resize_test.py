"""Resizing: exact where it can be, and otherwise between the neighbours."""

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.input.transforms.resize import Resize
from tests.input.transforms.many_seeds import random_image, seed


def resize(image, height, width):
    transform = Resize.Params().Set(height=height, width=width).Instantiate()
    return transform.Apply(tf.constant(image), seed(0)).numpy()


def test_to_the_same_size_is_the_identity():
    image = random_image(7, 9, 3)
    np.testing.assert_array_equal(resize(image, 7, 9), image)


@pytest.mark.parametrize("size", [(3, 5), (14, 9), (70, 90)])
def test_a_plane_stays_a_plane(size):
    rows, columns = np.mgrid[0:7, 0:9]
    plane = ((rows + 0.5) / 14 + (columns + 0.5) / 18).astype(np.float32)[..., None]
    height, width = size
    made = resize(plane, height, width)[..., 0]
    rows, columns = np.mgrid[0:height, 0:width]
    # Beyond the centres of the outermost pixels nothing is known of the plane.
    down = np.clip((rows + 0.5) / height, 0.5 / 7, 6.5 / 7)
    right = np.clip((columns + 0.5) / width, 0.5 / 9, 8.5 / 9)
    np.testing.assert_allclose(made, (down + right) / 2, atol=1e-6)
