"""Normalization: what its formula says."""

import numpy as np
import pytest

from lingvo_pipe.input.transforms.normalization import Normalization
from tests.input.transforms.many_seeds import apply_many, random_image


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


def test_0_and_1_are_the_identity():
    image = random_image(3, 4, 3)
    np.testing.assert_array_equal(normalized(image, mean=0, stddev=1), image)


def test_a_number_too_few_is_refused():
    transform = Normalization.Params().Set(mean=[0.1, 0.2]).Instantiate()
    with pytest.raises(ValueError, match=r"^mean\b.*\b3\b.*\[0\.1, 0\.2\]"):
        transform.OutputShape((8, 8, 3))
