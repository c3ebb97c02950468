"""Data sets of TensorFlow Datasets: known without data, read as they are stored."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

from lingvo_pipe.input.images.image_source import ImageFormat
from lingvo_pipe.input.images.tfds_images import TfdsImages
from tests.input.example_images import CLASSES, SIZES, example
from tests.input.listed_examples import ListedExamples, prepare
from tests.support.errors import fails

# Name: height and width, if all images have the same; number of classes.
CATALOG = {
    "imagenet2012": (None, 1000),
    "cifar10": (32, 10),
    "cifar100": (32, 100),
    "cars196": (None, 196),
    "oxford_iiit_pet": (None, 37),
    "food101": (None, 101),
    "stanford_dogs": (None, 120),
}


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    data_dir = str(tmp_path_factory.mktemp("data"))
    prepare("photos", data_dir)
    return data_dir


def read(source, indices):
    return [source.Read(record) for record in source.Fetch(tf.constant(indices))]


@pytest.mark.parametrize("name", CATALOG)
def test_those_of_the_papers_are_known_without_the_data_and_can_be_read(tmp_path, name):
    side, num_classes = CATALOG[name]
    dataset = TfdsImages(name, str(tmp_path))
    assert dataset.format == ImageFormat((side, side, 3), True, tf.uint8)
    assert len(dataset.class_names) == num_classes
    builder = unprepared(name, tmp_path)
    features = builder.info.features
    random = np.random.default_rng(0)
    shape = (side or 20, side or 30, 3)
    examples = [
        {key: some_value(feature) for key, feature in features.items()}
        | {"image": random.integers(0, 256, shape, np.uint8), "label": label}
        for label in range(5)
    ]
    write(builder, examples)
    source = TfdsImages(name, str(tmp_path)).Open("train")
    assert source.num_examples == 5
    for label, (image, found) in enumerate(read(source, range(5))):
        assert int(found) == label
        decoded = tf.io.decode_image(image, 3).numpy().astype(int)
        if tf.io.is_jpeg(image):
            assert np.abs(decoded - examples[label]["image"]).mean() < 60
        else:
            np.testing.assert_array_equal(decoded, examples[label]["image"])


def unprepared(name, data_dir):
    return tfds.builder(name, data_dir=str(data_dir), file_format="array_record")


def some_value(feature):
    if isinstance(feature, tfds.features.Image):
        return np.zeros([9 if side is None else side for side in feature.shape], "u1")
    if isinstance(feature, tfds.features.BBoxFeature):
        return tfds.features.BBox(0.0, 0.0, 1.0, 1.0)
    if isinstance(feature, tfds.features.Sequence):
        return []
    return "a" if isinstance(feature, tfds.features.Text) else 0


def write(builder, examples):
    """Writes examples as the data set's `train`."""
    builder.data_path.mkdir(parents=True)
    writer = tfds.core.SequentialWriter(
        builder.info, max_examples_per_shard=2, file_format="array_record"
    )
    writer.initialize_splits(["train"])
    writer.add_examples({"train": examples})
    writer.close_all()


@pytest.mark.parametrize("split", SIZES)
def test_examples_are_read_encoded_and_in_any_order(data_dir, split):
    dataset = TfdsImages("photos", data_dir)
    assert dataset.class_names == CLASSES
    source = dataset.Open(split)
    assert source.num_examples == SIZES[split]
    order = [3, 0, 9, 3, source.num_examples - 1]
    for number, (image, label) in zip(order, read(source, order), strict=True):
        expected, expected_label = example(split, number)
        assert int(label) == expected_label
        assert label.dtype == tf.int32
        decoded = tf.io.decode_image(image, 3).numpy().astype(int)
        assert np.abs(decoded - expected).mean() < 30


def test_arrays_are_read_as_arrays(tmp_path):
    dataset = TfdsImages("optdigits", str(tmp_path))
    assert dataset.format == ImageFormat((8, 8, 1), False, tf.uint8, 16)
    ((image, label),) = read(dataset.Open("train"), [0])
    assert (image.shape, image.dtype, int(label)) == ((8, 8, 1), tf.uint8, 0)


def test_a_part_of_a_split_is_a_part_of_it(data_dir):
    dataset = TfdsImages("photos", data_dir)
    part, whole = dataset.Open("train[10:20]"), dataset.Open("train")
    assert part.num_examples == 10
    for (image, _), (expected, _) in zip(
        read(part, range(10)), read(whole, range(10, 20)), strict=True
    ):
        assert image == expected


def test_what_is_not_there_is_named_with_the_command_that_prepares_it(tmp_path):
    # A builder of the user's own is found by importing it.
    imports = " --imports=tests.input.example_images"
    for name, more in (("cifar10", ""), ("imagenet2012", ""), ("photos", imports)):
        with fails(path="dataset") as info:
            TfdsImages(name, str(tmp_path)).Open("train")
        assert f"{name}, which is not in {tmp_path}/{name}/" in info.value.got
        command = f"lingvo_pipe prepare --dataset={name} --data_dir={tmp_path}{more}"
        assert info.value.hint == f"Prepare it with: {command}"
    assert not list(tmp_path.iterdir())


def test_a_split_without_labels_is_refused(tmp_path):
    builder = unprepared("cifar10", tmp_path)
    image = np.zeros([32, 32, 3], np.uint8)
    write(builder, [{"id": "a", "image": image, "label": -1}])
    with fails(path="split", got="train"):
        TfdsImages("cifar10", str(tmp_path)).Open("train")


class Sentences(ListedExamples):
    """A data set of something else than images."""

    def Features(self):
        return {"text": tfds.features.Text(), "label": tfds.features.Scalar(np.int64)}


def test_a_data_set_without_images_is_refused(tmp_path):
    with fails(path="dataset") as info:
        TfdsImages("sentences", str(tmp_path))
    assert info.value.got.startswith("'sentences' with label ")
