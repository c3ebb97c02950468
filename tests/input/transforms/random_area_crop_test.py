"""The random crop: area and aspect ratio within limits, everywhere in the image."""

import numpy as np
import pytest

from lingvo_pipe.input.transforms.random_area_crop import RandomAreaCrop
from tests.input.transforms.many_seeds import windows

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
    least, most = area_range
    area = HEIGHT * WIDTH
    assert ((height + 0.5) * (width + 0.5)).min() >= least * area
    assert ((height - 0.5) * (width - 0.5)).max() <= most * area
    least, most = aspect_ratio_range
    assert ((width + 0.5) / (height - 0.5)).min() >= least
    assert ((width - 0.5) / (height + 0.5)).max() <= most


def test_both_vary_over_all_of_their_limits():
    _, _, height, width = many()
    areas = height * width / (HEIGHT * WIDTH)
    counts, _ = np.histogram(areas, bins=6, range=(0.1, 1.0))
    assert counts.min() > 5, "every size comes up"
    ratios, _ = np.histogram(
        np.log(width / height), bins=4, range=(np.log(3 / 4), np.log(4 / 3))
    )
    assert ratios.min() > 150, "every aspect ratio comes up"


def test_a_small_window_is_anywhere():
    row, column, height, width = many(area_range=[0.02, 0.05])
    down, right = row / (HEIGHT - height), column / (WIDTH - width)
    for place in (down, right):
        counts, _ = np.histogram(place, bins=10, range=(0, 1))
        # The standard deviation of each count is 9.5.
        assert counts.min() > 60
        assert counts.max() < 140
    assert abs(np.corrcoef(down, right)[0, 1]) < 0.1


def test_the_whole_image_is_kept_where_no_window_fits():
    assert many(20, (8, 400, 3)).T.tolist() == [[0, 0, 8, 400]] * 20


def test_full_area_of_a_square_is_the_identity():
    ranges = {"area_range": [1.0, 1.0], "aspect_ratio_range": [1.0, 1.0]}
    assert many(20, (50, 50, 3), **ranges).T.tolist() == [[0, 0, 50, 50]] * 20
