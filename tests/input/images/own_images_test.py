"""Folders of a user's own images: found by name, resized and converted by default."""

import re

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

from lingvo_pipe.input.images.image_folder import ImageFolder
from lingvo_pipe.input.images.image_input import (
    ImageClassificationInput,
    find_dataset,
)
from lingvo_pipe.input.images.image_input_checks import file_dtype
from lingvo_pipe.input.images.tfds_images import TfdsImages
from lingvo_pipe.input.transforms import recipes
from lingvo_pipe.input.transforms.geometry import Resize
from tests.input.example_images import write_folder
from tests.input.listed_examples import ListedExamples
from tests.support.errors import fails


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_folder(folder / "pets")
    return folder


@pytest.fixture
def make_input(data_dir):
    def make(dataset="pets", **values):
        p = ImageClassificationInput.Params()
        p.Set(dataset=dataset, data_dir=str(data_dir), batch_size=8)
        return p.Set(**values).Instantiate()

    return make


def images(batches):
    return np.stack([batch.image for batch in batches.take(2)])


def test_images_of_many_sizes_are_resized_by_default(make_input):
    """The same as by a transform; transforms that do it are left alone."""
    resize = [Resize.Params().Set(height=9, width=7, antialias=True)]
    pets = make_input(image_size=[9, 7])
    wanted = make_input(train_transforms=resize, eval_transforms=resize)
    for ours, theirs in (
        (pets.TrainBatches(), wanted.TrainBatches()),
        (pets.EvalBatches(), wanted.EvalBatches()),
    ):
        np.testing.assert_array_equal(images(ours), images(theirs))
    assert re.search(r"\bpets\b.*\b9 x 7\b.*input\.image_size", pets.note)
    fitting = make_input(image_size=12, channels=3, **recipes.imagenet(12))
    assert wanted.note == fitting.note == ""
    with fails(got=((None, None, 3),) * 2) as info:
        make_input()
    assert "input.image_size" in info.value.hint


def test_images_are_converted_to_gray(make_input):
    gray = make_input(image_size=[9, 7], channels=1)
    color = images(make_input(image_size=[9, 7]).EvalBatches())
    assert gray.image_shape == (9, 7, 1)
    assert "input.channels" in gray.note
    luma = color @ np.array([[0.299], [0.587], [0.114]], np.float32)
    np.testing.assert_allclose(images(gray.EvalBatches()), luma, atol=2e-4)


@pytest.mark.parametrize(
    ("dataset", "shape", "remedy"),
    [
        ("pets", (9, 7, 1), "tf.image.grayscale_to_rgb"),
        ("pets", (9, 7, 4), "3 channels"),
        ("pets", (9, 7), "last dimension"),
        ("pets", (1, 9, 7, 3), "one image"),
        ("optdigits", (8, 8, 3), "tf.image.rgb_to_grayscale"),
        ("optdigits", (9, 7, 1), "Resize"),
    ],
)
def test_an_array_of_another_shape_gets_the_remedy(make_input, dataset, shape, remedy):
    with fails(path="image", got=shape) as info:
        make_input(dataset, image_size=8).EvalImage(tf.zeros(shape))
    assert remedy in info.value.hint


def test_an_array_of_brighter_pixels_is_refused_with_the_brightest(make_input):
    image = tf.reshape(tf.range(64.0), [8, 8, 1])
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"(?s)from 0 to 16\b.*\b63"
    ):
        make_input("optdigits", image_size=8, pixel_max=16).EvalImage(image)


class DeepImages(ListedExamples):
    """`deep_images`: of 16 bits."""

    def Features(self):
        image = tfds.features.Image(shape=(8, 8, 1), dtype=np.uint16)
        return {"image": image, "label": tfds.features.ClassLabel(names=["a"])}


@pytest.mark.parametrize(
    ("dataset", "pixel_max"),
    [
        *[("optdigits", x) for x in (16, 16.0, 254.5, 255.0, 256)],
        ("deep_images", 65535),
    ],
)
def test_a_file_has_the_pixels_of_its_array(make_input, dataset, pixel_max):
    dtype = np.uint16 if dataset == "deep_images" else np.uint8
    pixels = np.arange(64, dtype=dtype).reshape([8, 8, 1]) // 4
    data = make_input(dataset, image_size=8, pixel_max=pixel_max)
    for image in (tf.io.encode_png(pixels), tf.constant(pixels)):
        expected = pixels.astype("float32") / pixel_max
        np.testing.assert_array_equal(data.EvalImage(image), expected)


@pytest.mark.parametrize(
    ("dtype", "pixel_max", "of_file"),
    [
        *[(tf.uint8, 256, tf.uint8), (tf.uint16, 16, tf.uint16)],
        *[(tf.float32, 255.0, tf.uint8), (tf.int32, 4095, tf.uint16)],
    ],
)
def test_files_are_decoded_to_as_many_bits_as_pixels_have(dtype, pixel_max, of_file):
    assert file_dtype(dtype, pixel_max) == of_file


def test_the_brightest_pixel_of_a_data_set_becomes_1(make_input):
    for dataset, largest in {"optdigits": 16, "pets": 255}.items():
        of_data, given = (
            make_input(dataset, image_size=8, pixel_max=pixel_max).EvalBatches()
            for pixel_max in (None, largest)
        )
        np.testing.assert_array_equal(images(of_data), images(given))


WIDE = [Resize.Params().Set(height=4, width=9)]


@pytest.mark.parametrize(
    ("values", "size", "channels"),
    [
        ({"dataset": "optdigits", "pixel_max": 16}, 8, 1),
        ({"dataset": "optdigits", "image_size": 9, "channels": 3}, 9, 3),
        ({"dataset": "optdigits", "labels": [1, 0]}, 8, 1),
        ({"dataset": "cifar10", **recipes.cifar()}, 32, 3),
        ({"dataset": "food101", **recipes.imagenet(12)}, 12, 3),
        (
            {"dataset": "optdigits", "eval_transforms": WIDE, "train_transforms": WIDE},
            [4, 9],
            1,
        ),
        ({"dataset": "unknown"}, None, None),
        ({"dataset": "pets", "pixel_max": 99}, None, None),
    ],
)
def test_another_data_set_has_the_shape_of_the_model(data_dir, values, size, channels):
    p = ImageClassificationInput.Params().Set(batch_size=8, data_dir=str(data_dir))
    before = p.Set(**values).Copy()
    p.cls.ReplaceDataset(p, "pets")
    if before.dataset == "pets":
        assert p == before
        return
    assert (p.dataset, p.image_size, p.channels) == ("pets", size, channels)
    assert p.pixel_max is p.labels is None
    if size is not None:
        height, width = size if isinstance(size, list) else (size, size)
        assert images(p.Instantiate().TrainBatches()).shape[2:] == (
            height,
            width,
            channels,
        )


def test_a_folder_is_a_data_set(tmp_path):
    """By its name; if it is also one of the catalog, only with a split `train`."""
    for place in ("cats/test/a", "mnist/train/a", "cifar10/test/a"):
        (tmp_path / place).mkdir(parents=True)
    kinds = {"cats": ImageFolder, "mnist": ImageFolder, "cifar10": TfdsImages}
    for name, kind in kinds.items():
        assert isinstance(find_dataset(name, str(tmp_path)), kind)
    with fails(path="dataset", got="catz") as info:
        find_dataset("catz", str(tmp_path))
    assert str(tmp_path) in info.value.expected
    assert "'cats'" in info.value.hint
