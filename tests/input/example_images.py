"""Small data sets of images, made on the spot."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

from tests.input.listed_examples import ListedExamples

CLASSES = ["ant", "bee", "cat"]
SIZES = {"train": 37, "test": 10}


def pixels(height: int, width: int, number: int) -> np.ndarray:
    """uint8 [height, width, 3]: patches of color, and noise."""
    random = np.random.default_rng(number)
    patches = random.integers(0, 200, (-(-height // 8), -(-width // 8), 3))
    patches = patches.repeat(8, axis=0).repeat(8, axis=1)[:height, :width]
    return (patches + random.integers(0, 56, patches.shape)).astype(np.uint8)


def example(split: str, number: int) -> tuple[np.ndarray, int]:
    """An image of a size of its own, and its label."""
    key = number + 100 * (split == "test")
    return pixels(20 + key % 7, 30 - key % 5, key), number % len(CLASSES)


def jpeg(image: np.ndarray) -> bytes:
    """The image as a file."""
    return tf.io.encode_jpeg(image, quality=95).numpy()


class Photos(ListedExamples):
    """`photos`: JPEG images of many sizes, as those of `example`."""

    def Features(self) -> dict[str, Any]:
        return {
            "image": tfds.features.Image(shape=(None, None, 3), encoding_format="jpeg"),
            "label": tfds.features.ClassLabel(names=CLASSES),
            "mask": tfds.features.Image(shape=(None, None, 1)),
        }

    def _split_generators(self, dl_manager: Any) -> dict[str, Iterator]:
        return {split: self._split_examples(split) for split in SIZES}

    def _split_examples(self, split: str) -> Iterator:
        for number in range(SIZES[split]):
            image, label = example(split, number)
            mask = np.zeros((*image.shape[:2], 1), np.uint8)
            yield number, {"image": image, "label": label, "mask": mask}


def write_folder(root: Path) -> None:
    """Writes the images of `example` as an image folder."""
    for split, size in SIZES.items():
        for number in range(size):
            image, label = example(split, number)
            folder = root / split / CLASSES[label]
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{number:03}.jpg").write_bytes(jpeg(image))
