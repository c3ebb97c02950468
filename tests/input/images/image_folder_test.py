"""Folders of images: what is in them, in an order that mixes classes."""

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.input.images.image_folder import ImageFolder
from tests.input.example_images import CLASSES, SIZES, example, jpeg, write_folder
from tests.support.errors import fails


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("images")
    write_folder(root)
    return root


def read(source):
    """{file: label} in order."""
    records = source.Fetch(tf.range(source.num_examples, dtype=tf.int64))
    return [
        (image.numpy(), int(label))
        for image, label in (
            source.Read(record) for record in zip(*records, strict=True)
        )
    ]


@pytest.mark.parametrize("split", SIZES)
def test_every_image_is_there_once_with_its_class(root, split):
    dataset = ImageFolder(str(root))
    assert dataset.class_names == CLASSES
    examples = [example(split, number) for number in range(SIZES[split])]
    expected = [(jpeg(image), label) for image, label in examples]
    assert sorted(read(dataset.Open(split))) == sorted(expected)


def test_the_order_is_the_same_each_time_and_mixes_the_classes(root):
    first, again = (read(ImageFolder(str(root)).Open("train")) for _ in range(2))
    assert first == again
    labels = [label for _, label in first]
    assert len(set(labels[:12])) == len(CLASSES)


def test_parts_of_splits_are_parts_of_them(root):
    dataset = ImageFolder(str(root))
    whole, test = read(dataset.Open("train")), read(dataset.Open("test"))
    assert read(dataset.Open("train[:10]")) == whole[:10]
    assert read(dataset.Open("train[10:]")) == whole[10:]
    assert read(dataset.Open("train[:50%]+test[-1:]")) == whole[:18] + test[-1:]
    assert read(dataset.Open("test+train")) == test + whole


def test_classes_are_those_of_all_splits(tmp_path):
    for place in ("train/b", "test/a", "test/.cache"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "1.PNG").write_bytes(b"")
    (tmp_path / ".hidden").touch()
    (tmp_path / "test" / "a" / ".DS_Store").touch()
    dataset = ImageFolder(str(tmp_path))
    assert dataset.class_names == ["a", "b"]
    assert read(dataset.Open("train")) == [(b"", 1)]
    assert read(dataset.Open("test")) == [(b"", 0)]


def test_only_few_pixels_are_asked_of_what_is_read(root):
    image, _ = read(ImageFolder(str(root)).Open("train"))[0]
    assert np.ndim(tf.io.decode_image(image, 3)) == 3


@pytest.mark.parametrize(
    ("files", "split", "path", "got"),
    [
        ([], "train", "dataset", "no folder ROOT"),
        (["a/b/1.jpg"], "train", "split", "train"),
        (["train/b/1.jpg"], "train[5:9]", "split", "train[5:9]"),
        (["train/b/1.jpg"], "train[", "split", "train["),
        (["train/1.jpg"], "train", "dataset", "the file ROOT/train/1.jpg"),
        (["train/b/1.jpg", "README"], "train", "dataset", "the file ROOT/README"),
        (["train/b/1.jpg", "train/b/x.txt"], "train", "dataset", "ROOT/train/b/x.txt"),
        (["train/b/c/1.jpg"], "train", "dataset", "ROOT/train/b/c"),
        (["train/.b/1.jpg"], "train", "split", "train"),
        ([".train/b/1.jpg"], "train", "dataset", "the empty folder ROOT"),
    ],
)
def test_what_is_no_image_folder_is_refused(tmp_path, files, split, path, got):
    root = tmp_path / "images"
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).touch()
    with fails(path=path, got=got.replace("ROOT", str(root))):
        ImageFolder(str(root)).Open(split)


def test_a_folder_of_classes_without_splits_is_told_from_others(tmp_path):
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "1.jpg").touch()
    with fails(path="dataset", got=f"the file {tmp_path}/a/1.jpg") as info:
        ImageFolder(str(tmp_path)).Open("train")
    assert f"If {tmp_path}/a is a class, move that into" in info.value.hint
