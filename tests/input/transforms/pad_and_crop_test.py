"""Padding and cropping: every shift, each as often, and nothing else."""

import itertools

import numpy as np

from lingvo_pipe.input.transforms.pad_and_crop import PadAndCrop
from tests.input.transforms.many_seeds import apply_many, random_image


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


def test_without_padding_it_is_the_identity():
    image = random_image(5, 4, 3)
    made = apply_many(PadAndCrop.Params().Set(padding=0).Instantiate(), image, 3)
    np.testing.assert_array_equal(made, [image] * 3)
