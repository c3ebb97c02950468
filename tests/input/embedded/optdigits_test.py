"""The embedded digits: the numbers of the data set and its fixed split."""

import socket

import numpy as np
import pytest
import tensorflow_datasets as tfds

from lingvo_pipe.input.prepared_dataset import prepared_builder


@pytest.fixture(scope="module")
def builder(tmp_path_factory):
    """The prepared data set, made where every connection is refused."""

    def refuse(*args, **kwargs):
        raise AssertionError("the embedded data set must not use the network")

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(socket.socket, "connect", refuse)
        monkeypatch.setattr(socket, "getaddrinfo", refuse)
        return prepared_builder("optdigits", str(tmp_path_factory.mktemp("data")))


def read(builder, split):
    source = builder.as_data_source(split)
    examples = source.__getitems__(range(len(source)))
    images = np.stack([example["image"] for example in examples])
    return images, np.array([example["label"] for example in examples])


def test_every_fifth_image_is_for_testing(builder):
    sizes = {name: split.num_examples for name, split in builder.info.splits.items()}
    assert sizes == {"train": 1438, "test": 359}
    all_labels = np.empty(1797, np.int64)
    all_labels[4::5] = read(builder, "test")[1]
    all_labels[np.arange(1797) % 5 != 4] = read(builder, "train")[1]
    # The file begins with the digits in order, three times.
    assert all_labels[:30].tolist() == [*range(10)] * 3
    assert np.bincount(all_labels).tolist() == [
        *(178, 182, 177, 183, 181),
        *(182, 181, 179, 174, 180),
    ]


def test_images_are_the_pixels_of_the_file(builder):
    images, labels = read(builder, "train")
    assert images.shape == (1438, 8, 8, 1)
    assert images.dtype == np.uint8
    assert (images.min(), images.max()) == (0, 16)
    assert labels[0] == 0
    assert images[0, :, :, 0].tolist() == [
        [0, 0, 5, 13, 9, 1, 0, 0],
        [0, 0, 13, 15, 10, 15, 5, 0],
        [0, 3, 15, 2, 0, 11, 8, 0],
        [0, 4, 12, 0, 0, 8, 8, 0],
        [0, 5, 8, 0, 0, 9, 8, 0],
        [0, 4, 11, 0, 1, 12, 7, 0],
        [0, 2, 14, 5, 10, 12, 0, 0],
        [0, 0, 6, 13, 10, 0, 0, 0],
    ]


def test_tensorflow_datasets_knows_it_and_its_licence(builder):
    assert tfds.builder_cls("optdigits") is type(builder)
    assert builder.info.as_proto.redistribution_info.license == "CC BY 4.0"
    assert "Alpaydin" in builder.info.citation
