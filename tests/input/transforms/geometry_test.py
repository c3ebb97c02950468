"""Transforms that choose, move, resize or paint over pixels."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.input.transforms.geometry import (
    CentralCrop,
    Cutout,
    PadAndCrop,
    RandomAreaCrop,
)
from tests.input.transforms.many_seeds import apply_many, random_image, seed, windows

SIZES = [(1, 1), (2, 3), (7, 8), (31, 32), (375, 500)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("fraction", [0.1, 0.5, 0.875, 0.99, 1])
def test_a_central_crop_equals_tensorflows(size, fraction):
    image = random_image(*size, 3)
    transform = CentralCrop.Params().Set(fraction=fraction).Instantiate()
    cropped = transform.Apply(tf.constant(image), seed(0)).numpy()
    np.testing.assert_array_equal(cropped, tf.image.central_crop(image, fraction))
    assert transform.OutputShape(image.shape) == cropped.shape


def shifted(image, down, right, fill):
    """The image moved, by indices alone."""
    made = np.full_like(image, fill)
    height, width, _ = image.shape
    for row, column in itertools.product(range(height), range(width)):
        if 0 <= row - down < height and 0 <= column - right < width:
            made[row, column] = image[row - down, column - right]
    return made


def test_every_shift_comes_up_as_often():
    image = random_image(5, 4, 3)
    transform = PadAndCrop.Params().Set(padding=2, fill=0.25).Instantiate()
    made = apply_many(transform, image, 2500)
    counts = [
        (made == shifted(image, down, right, 0.25)).all((1, 2, 3)).sum()
        for down, right in itertools.product(range(-2, 3), repeat=2)
    ]
    assert sum(counts) == 2500
    # The standard deviation of each count is 10.
    assert min(counts) > 60
    assert max(counts) < 140


HEIGHT, WIDTH = 300, 400


def crop(**values):
    return RandomAreaCrop.Params().Set(**values).Instantiate()


def many(num_seeds=1000, shape=(HEIGHT, WIDTH, 3), **values):
    return windows(crop(**values), shape, num_seeds).astype(float).T


@pytest.mark.parametrize("area_range", [[0.1, 1.0], [0.3, 0.35], [0.02, 0.05]])
@pytest.mark.parametrize("aspect_ratio_range", [[3 / 4, 4 / 3], [0.5, 0.5], [1.0, 2.0]])
def test_area_and_aspect_ratio_are_within_their_limits(area_range, aspect_ratio_range):
    row, column, height, width = many(
        area_range=area_range, aspect_ratio_range=aspect_ratio_range
    )
    assert min(row.min(), column.min(), height.min() - 1, width.min() - 1) >= 0
    assert (row + height).max() <= HEIGHT
    assert (column + width).max() <= WIDTH
    # Sides are whole pixels: half a pixel off at most.
    minimum, maximum = area_range
    area = HEIGHT * WIDTH
    assert ((height + 0.5) * (width + 0.5)).min() >= minimum * area
    assert ((height - 0.5) * (width - 0.5)).max() <= maximum * area
    minimum, maximum = aspect_ratio_range
    assert ((width + 0.5) / (height - 0.5)).min() >= minimum
    assert ((width - 0.5) / (height + 0.5)).max() <= maximum


def test_the_whole_image_is_kept_where_no_window_fits():
    assert many(20, (8, 400, 3)).T.tolist() == [[0, 0, 8, 400]] * 20


def test_full_area_of_a_square_is_the_identity():
    ranges = {"area_range": [1.0, 1.0], "aspect_ratio_range": [1.0, 1.0]}
    assert many(20, (50, 50, 3), **ranges).T.tolist() == [[0, 0, 50, 50]] * 20


CUT_HEIGHT, CUT_WIDTH = 5, 7


def cut(image, row, column, size, fill):
    made = image.copy()
    top, left = row - size // 2, column - size // 2
    made[max(top, 0) : top + size, max(left, 0) : left + size] = fill
    return made


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_every_square_comes_up_as_often(size):
    image = random_image(CUT_HEIGHT, CUT_WIDTH, 2)
    transform = Cutout.Params().Set(size=size, fill=0.25).Instantiate()
    made = apply_many(transform, image, 3500)
    expected = [
        cut(image, row, column, size, 0.25)
        for row, column in itertools.product(range(CUT_HEIGHT), range(CUT_WIDTH))
    ]
    counts = [(made == square).all((1, 2, 3)).sum() for square in expected]
    # The standard deviation of each count is 10.
    assert min(counts) > 60
    assert max(counts) < 140
    assert sum(counts) == 3500


def test_a_square_that_covers_all_leaves_nothing():
    image = random_image(CUT_HEIGHT, CUT_WIDTH, 3)
    made = apply_many(Cutout.Params().Set(size=100, fill=1).Instantiate(), image, 9)
    assert (made == 1).all()
