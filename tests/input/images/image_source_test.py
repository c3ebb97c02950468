"""Decoding of images, and of windows of them."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.input.images.image_source import (
    ImageFormat,
    decode_image,
    read_pixels,
)
from tests.input.example_images import pixels

SIZES = [(1, 1), (16, 17), (37, 61), (64, 48)]


@tf.function
def decode(encoded, window):
    return decode_image(encoded, 3, lambda shape: window)


def random_windows(height, width, number=60):
    random = np.random.default_rng(0)
    for _ in range(number):
        rows, columns = random.integers(1, height + 1), random.integers(1, width + 1)
        row = random.integers(0, height - rows + 1)
        yield row, random.integers(0, width - columns + 1), rows, columns


def check_windows(encoded, whole):
    for row, column, rows, columns in random_windows(*whole.shape[:2]):
        made = decode(encoded, tf.constant([row, column, rows, columns], tf.int32))
        expected = whole[row : row + rows, column : column + columns]
        np.testing.assert_array_equal(made, expected)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("is_subsampled", [True, False])
@pytest.mark.parametrize("is_progressive", [True, False])
def test_a_window_of_a_jpeg_has_its_bytes(size, is_subsampled, is_progressive):
    encoded = tf.io.encode_jpeg(
        pixels(size[0], size[1], 0),
        quality=80,
        chroma_downsampling=is_subsampled,
        progressive=is_progressive,
    )
    check_windows(encoded, tf.io.decode_image(encoded, 3).numpy())


@pytest.mark.parametrize("size", SIZES)
def test_a_window_of_a_png_has_its_bytes(size):
    image = pixels(size[0], size[1], 0)
    check_windows(tf.io.encode_png(image), image)


def test_without_a_window_it_is_all():
    image = pixels(9, 14, 0)
    np.testing.assert_array_equal(decode_image(tf.io.encode_png(image), 3, None), image)


@pytest.mark.parametrize("encode", [tf.io.encode_png, tf.io.encode_jpeg])
def test_grey_becomes_three_channels_and_color_one(encode):
    grey, color = pixels(16, 16, 0)[..., :1], np.full([16, 16, 3], 200, np.uint8)
    for choose in (None, lambda shape: tf.constant([0, 0, 16, 16])):
        made = decode_image(encode(grey), 3, choose)
        assert made.shape == (16, 16, 3)
        assert (made[..., :1] == made).numpy().all()
        assert (decode_image(encode(color), 1, choose) == 200).numpy().all()


def test_the_window_is_chosen_for_the_shape_of_the_image():
    seen = []
    for encode in (tf.io.encode_jpeg, tf.io.encode_png):

        def choose(shape):
            seen.append(shape.numpy().tolist())
            return tf.constant([0, 0, 1, 1])

        decode_image(encode(pixels(9, 14, 0)), 3, choose)
    assert seen == [[9, 14, 3]] * 2


def test_little_more_than_the_window_of_a_jpeg_is_decoded(monkeypatch):
    decode_and_crop, decoded = tf.image.decode_and_crop_jpeg, []

    def note(encoded, window, channels):
        decoded.append(window.numpy().tolist())
        return decode_and_crop(encoded, window, channels)

    monkeypatch.setattr(tf.image, "decode_and_crop_jpeg", note)
    encoded = tf.io.encode_jpeg(pixels(100, 100, 0))
    decode_image(encoded, 3, lambda shape: tf.constant([10, 20, 50, 40]))
    assert decoded == [[8, 18, 54, 44]]


def _arrays() -> Any:
    """Returns a source whose records are images."""
    return SimpleNamespace(
        format=ImageFormat((None, None, 3), False, tf.uint8),
        Read=lambda record: (tf.constant(record), tf.constant(7)),
    )


def test_a_window_of_an_array_has_its_pixels():
    image = pixels(9, 8, 0)
    for row, column, rows, columns in random_windows(9, 8, 5):
        window = tf.constant([row, column, rows, columns])
        in_window, label = read_pixels(_arrays(), image, lambda _: window)  # noqa: B023
        expected = image[row : row + rows, column : column + columns]
        np.testing.assert_array_equal(in_window, expected)
        assert label == 7
    np.testing.assert_array_equal(read_pixels(_arrays(), image)[0], image)
