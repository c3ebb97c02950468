"""Params of an image input: problems are named without any data."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from lingvo_pipe.input.images.image_input import ImageClassificationInput
from lingvo_pipe.input.images.image_input_checks import check_pixel_max, check_pixels
from lingvo_pipe.input.images.image_source import ImageFormat
from lingvo_pipe.input.transforms.colors import ColorDistortion
from lingvo_pipe.input.transforms.geometry import CentralCrop, Resize
from tests.support.errors import fails

SMALL = Resize.Params().Set(height=4, width=4)


def _input(**values: Any) -> Any:
    p = ImageClassificationInput.Params().Set(batch_size=64, pixel_max=16)
    return p.Set(**values).Instantiate()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("batch_size", x) for x in (None, 0, 2.5)],
        *[("random_seed", x) for x in (-1, 2**64, None)],
        *[("pixel_max", x) for x in (0, "255")],
        *[("image_size", x) for x in (0, [8], [8, 0])],
        *[("channels", 4), ("num_parallel_calls", 0), ("num_logits", 0)],
        *[("labels", x) for x in ([], [1, 1], [-1], 3, [[5, 6]])],
        ("shuffle", "False"),
        *[("dataset", None), ("split", None), ("train_transforms", None)],
    ],
)
def test_params_out_of_range_are_refused(name: str, value: Any) -> None:
    with fails(path=f"ImageClassificationInput.{name}", got=value):
        _input(**{name: value})


def test_all_problems_are_named() -> None:
    with fails() as info:
        _input(batch_size=0, pixel_max=-1)
    assert [x.got for x in info.value.problems] == [0, -1]


BOTH = "input.train_transforms and input.eval_transforms"
ANY = (None, None, 3)


@pytest.mark.parametrize(
    ("values", "path", "got"),
    [
        ({"dataset": "optdigit"}, "dataset", "optdigit"),
        (
            {"eval_transforms": ["crop"]},
            "input.train_transforms, input.eval_transforms",
            "crop",
        ),
        ({"eval_transforms": [SMALL]}, BOTH, ((8, 8, 1), (4, 4, 1))),
        (
            {"dataset": "food101", "eval_transforms": [CentralCrop.Params()]},
            BOTH,
            (ANY, ANY),
        ),
        ({"train_transforms": [ColorDistortion.Params()]}, "ColorDistortion", 1),
        (
            {"image_size": 8, "train_transforms": [SMALL], "eval_transforms": [SMALL]},
            "input.image_size",
            [8, 8],
        ),
    ],
)
def test_params_that_do_not_fit_are_refused(
    values: dict[str, Any], path: str, got: Any
) -> None:
    with fails(path=path, got=got):
        _input(**values)


def _format(dtype: tf.DType, pixel_max: int | None = None) -> ImageFormat:
    return ImageFormat((1, 1, 1), False, dtype, pixel_max)


def test_the_brightest_of_pixels_that_are_no_bytes_must_be_given() -> None:
    p = ImageClassificationInput.Params().Set(pixel_max=None)
    for dtype in (tf.float32, tf.uint16):
        with fails(path="input.pixel_max", got=None):
            check_pixel_max(p, _format(dtype))
        check_pixel_max(p, _format(dtype, 16))
        check_pixel_max(p.Copy().Set(pixel_max=0.5), _format(dtype))
    check_pixel_max(p, _format(tf.uint8))


class Pixels:
    """A source of images of one pixel."""

    def __init__(self, dtype: tf.DType, pixels: list[float]) -> None:
        self.format, self.num_examples = _format(dtype), len(pixels)
        self._pixels = tf.reshape(tf.constant(pixels, dtype), [-1, 1, 1, 1])

    def Fetch(self, indices: tf.Tensor) -> tf.Tensor:
        return tf.gather(self._pixels, indices)

    def Read(self, record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return record, tf.constant(0)

    def Name(self, index: int) -> str:
        return f"pixel {index}"


@pytest.mark.parametrize(
    ("dtype", "pixels", "pixel_max", "path", "got"),
    [
        (tf.float32, [0.0, 1.0], 255, "input.pixel_max", 255),
        (tf.float32, [1.0, -0.5], 1, "input.dataset", -0.5),
        (tf.int16, [-3, 9], 9, "input.dataset", -3),
        (tf.uint16, [0, 300], 299, "input.pixel_max", 299),
        (tf.uint8, [17, 0], 16.5, "input.pixel_max", 16.5),
    ],
)
def test_pixels_out_of_range_are_refused(
    dtype: tf.DType, pixels: list[float], pixel_max: float, path: str, got: float
) -> None:
    source = Pixels(dtype, pixels)
    with fails(path=path, got=got):
        check_pixels(ImageClassificationInput.Params(), source, pixel_max)


@pytest.mark.parametrize(
    ("dtype", "pixels", "pixel_max"),
    [
        (tf.float32, [0.0, 1.0], 1),
        (tf.float32, [0.0, 200.0], 255),
        (tf.int16, [0, 9], 9),
        (tf.uint8, [0, 1], 255),
    ],
)
def test_other_pixels_are_allowed(
    dtype: tf.DType, pixels: list[float], pixel_max: float
) -> None:
    source = Pixels(dtype, pixels)
    check_pixels(ImageClassificationInput.Params(), source, pixel_max)
