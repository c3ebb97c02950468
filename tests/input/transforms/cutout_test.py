"""Cutout: a square around every pixel, each as often, cut off at the border."""

import itertools

import numpy as np
import pytest

from lingvo_pipe.input.transforms.cutout import Cutout
from tests.input.transforms.many_seeds import apply_many, random_image

HEIGHT, WIDTH = 5, 7


def cut(image, row, column, size, fill):
    made = image.copy()
    top, left = row - size // 2, column - size // 2
    made[max(top, 0) : top + size, max(left, 0) : left + size] = fill
    return made


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_every_square_comes_up_as_often(size):
    image = random_image(HEIGHT, WIDTH, 2)
    transform = Cutout.Params().Set(size=size, fill=0.25).Instantiate()
    made = apply_many(transform, image, 3500)
    expected = [
        cut(image, row, column, size, 0.25)
        for row, column in itertools.product(range(HEIGHT), range(WIDTH))
    ]
    counts = [(made == square).all((1, 2, 3)).sum() for square in expected]
    # The standard deviation of each count is 10.
    assert min(counts) > 60
    assert max(counts) < 140
    assert sum(counts) == 3500


def test_without_size_it_is_the_identity():
    image = random_image(HEIGHT, WIDTH, 3)
    made = apply_many(Cutout.Params().Set(size=0).Instantiate(), image, 3)
    np.testing.assert_array_equal(made, [image] * 3)


def test_a_square_that_covers_all_leaves_nothing():
    image = random_image(HEIGHT, WIDTH, 3)
    made = apply_many(Cutout.Params().Set(size=100, fill=1).Instantiate(), image, 9)
    assert (made == 1).all()
