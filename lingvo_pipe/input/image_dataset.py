"""Data sets of classified images, by their names."""

from __future__ import annotations

import os

import tensorflow_datasets as tfds

from lingvo_pipe.input.image_folder import ImageFolder
from lingvo_pipe.input.image_source import ImageDataset
from lingvo_pipe.input.tfds_images import TfdsImages

_FOLDER = "image_folder:"


def find_dataset(name: str, data_dir: str | None) -> ImageDataset:
    """Returns the data set of that name, which need not be there yet.

    Args:
        name: A name of TensorFlow Datasets, an embedded data set, or
            `image_folder:PATH`, PATH being absolute or within `data_dir`.
        data_dir: Where data sets lie; None: the default of TensorFlow Datasets.

    Raises:
        ValueError: If no such data set is known, or it is another kind of data set.
    """
    if name.startswith(_FOLDER):
        home = data_dir or tfds.core.constants.DATA_DIR
        return ImageFolder(os.path.join(home, name.removeprefix(_FOLDER)))
    return TfdsImages(name, data_dir)
