"""AmoebaNet against the published sizes, and counts made from the public code.

Published are sizes without auxiliary head and with 1001 classes, the data set's and one
for the background.
"""

from __future__ import annotations

import pytest
import tensorflow as tf

from lingvo_pipe.layers.core.model_size import layer_sizes, parameter_counts
from lingvo_pipe.models.amoebanet.network import amoebanet
from tests.support.cases import exhaustive

CLASSES = 1001

# Genotype, cells, filters, parameters; what was published, and by how much that may
# differ: by half of its last digit, or by more where the public code does not reach it.
PUBLISHED = [
    exhaustive("A", 18, 190, 86_721_838, 86.7e6, 0.05e6),
    exhaustive("A", 18, 448, 468_158_353, 469e6, 1.4e6),
    ("A", 12, 50, 5_087_731, 5.1e6, 0.05e6),
    exhaustive("B", 18, 512, 557_286_057, 557e6, 0.5e6),
    ("B", 9, 62, 5_259_693, 5.3e6, 0.05e6),
    exhaustive("C", 18, 228, 155_277_228, 155.3e6, 0.05e6),
    ("C", 12, 50, 6_354_816, 6.4e6, 0.05e6),
    exhaustive("C", 12, 44, 5_057_850, 5.1e6, 0.05e6),
    ("D", 18, 208, 81_140_766, 82e6, 0.9e6),
    exhaustive("D", 18, 416, 317_548_353, 318e6, 0.6e6),
    exhaustive("D", 18, 544, 540_204_945, 542e6, 1.9e6),
    exhaustive("D", 36, 544, 1_053_302_481, 1.05e9, 0.005e9),
    exhaustive("D", 72, 512, 1_842_618_441, 1.8e9, 0.05e9),
]
# On CIFAR-10, published as 2.6M, 3.2M; 2.8M, 13.7M and 34.9M.
CIFAR = [
    ("A", 18, 32, 2_567_754),
    ("A", 18, 36, 3_218_266),
    ("B", 18, 36, 2_839_186),
    ("B", 18, 80, 13_716_250),
    ("B", 18, 128, 34_874_506),
]
# Not published.
TEN_CLASSES = [
    ("A", 6, 32, 1_078_302),
    ("B", 6, 32, 813_422),
    ("C", 6, 32, 1_354_114),
    ("D", 6, 32, 672_242),
]


@pytest.mark.parametrize(
    ("genotype", "cells", "filters", "count", "published", "tolerance"), PUBLISHED
)
def test_sizes_are_the_published(
    genotype: str,
    cells: int,
    filters: int,
    count: int,
    published: float,
    tolerance: float,
) -> None:
    found = sum(parameter_counts(amoebanet(genotype, cells, filters, CLASSES)))
    assert found == count
    assert abs(found - published) <= tolerance


@pytest.mark.parametrize(
    ("genotype", "cells", "filters", "count", "small_images"),
    [
        (*CIFAR[0], True),
        *[exhaustive(*row, True) for row in CIFAR[1:]],
        *[(*row, False) for row in TEN_CLASSES],
    ],
)
def test_sizes_with_ten_classes(
    genotype: str, cells: int, filters: int, count: int, small_images: bool
) -> None:
    layers = amoebanet(genotype, cells, filters, 10, small_images=small_images)
    assert sum(parameter_counts(layers)) == count


def test_each_layer_has_its_share_of_parameters() -> None:
    small = [928, 389, 672, 2320, 6736, 11552, 29216, 45120, 2570]
    assert parameter_counts(amoebanet("D", 3, 16, 10)) == small
    large = [
        *(928, 97_824, 492_800),
        *(2_519_040, 3_173_376, *[4_222_976] * 4),
        10_638_336,
        *(12_640_256, 14_737_408, *[16_834_560] * 4),
        42_379_264,
        *(50_446_336, 58_834_944, *[67_223_552] * 4),
        8_201_193,
    ]
    assert parameter_counts(amoebanet("B", 18, 512, CLASSES)) == large


@pytest.mark.parametrize(
    ("genotype", "cells", "filters", "image", "multiply_adds"),
    [
        exhaustive("A", 18, 190, 331, 23.1e9),  # published
        exhaustive("A", 18, 448, 299, 104e9),  # published
        exhaustive("A", 18, 448, 331, 126.5e9),
        exhaustive("A", 12, 50, 224, 555e6),  # published
        exhaustive("B", 18, 512, 480, 298.8e9),
        ("B", 9, 62, 224, 555e6),  # published
        exhaustive("C", 18, 228, 331, 41.13e9),  # 41 published
        exhaustive("C", 12, 44, 224, 535e6),  # published
        exhaustive("D", 18, 208, 224, 9.38e9),
        exhaustive("D", 18, 416, 224, 37.4e9),
        exhaustive("D", 18, 544, 224, 63.9e9),
        exhaustive("D", 36, 544, 224, 121.3e9),
        exhaustive("D", 72, 512, 224, 209.2e9),
        exhaustive("D", 18, 256, 224, 14.19e9),
        exhaustive("D", 18, 128, 224, 3.57e9),
    ],
)
def test_multiply_adds(
    genotype: str, cells: int, filters: int, image: int, multiply_adds: float
) -> None:
    layers = amoebanet(genotype, cells, filters, CLASSES)
    sizes = layer_sizes(layers, tf.TensorSpec([1, image, image, 3]))
    found = sum(size.multiply_adds for size in sizes)
    assert found == pytest.approx(multiply_adds, rel=0.005)
