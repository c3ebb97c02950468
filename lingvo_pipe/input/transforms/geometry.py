"""Transforms that choose, move, resize or paint over an image's pixels.

Shapes: images of H x W pixels in C channels. A window is int32 `[4]`: the row of its
first pixel, the column, its height, its width.
"""

from typing import Any, ClassVar

import tensorflow as tf

from lingvo_pipe.hyperparams.param_rules import Rule, count, number_between
from lingvo_pipe.input.transforms.image_transform import ImageShape, ImageTransform


class CropTransform(ImageTransform):
    """Base of crops to a window that depends on the image's size, not on its pixels.

    If the first transform is a crop, only the window is decoded.
    """

    def Window(self, shape: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Returns the window to keep, int32 `[4]`, by an image's shape, int32 `[3]`."""
        raise NotImplementedError(f"{type(self).__name__}.Window")

    def OutputShape(self, shape: ImageShape) -> ImageShape:
        return None, None, shape[2]

    def Apply(self, image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        return keep_window(image, self.Window(tf.shape(image), seed))


def keep_window(image: tf.Tensor, window: tf.Tensor) -> tf.Tensor:
    """Returns the pixels of an image `[H, W, C]` in a window: `[height, width, C]`."""
    row, column, height, width = tf.unstack(window)
    return image[row : row + height, column : column + width]


class CentralCrop(CropTransform):
    """A crop to the middle, with the same share of the height and of the width."""

    PARAMS: ClassVar = {
        "fraction": (0.875, "Share of the height, and of the width, to keep.")
    }

    RULES: ClassVar = {
        "fraction": Rule(
            lambda x: isinstance(x, int | float) and 0 < x <= 1,
            "a number above 0 and at most 1",
        )
    }

    def OutputShape(self, shape: ImageShape) -> ImageShape:
        return self._cropped(shape[0]), self._cropped(shape[1]), shape[2]

    def Window(self, shape: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        sides = shape[:2]
        wide = tf.cast(sides, tf.float64)
        margins = tf.cast((wide - wide * self.params.fraction) / 2, tf.int32)
        return tf.concat([margins, sides - 2 * margins], axis=0)

    def _cropped(self, side: int | None) -> int | None:
        if side is None:
            return None
        return side - 2 * int((side - side * self.params.fraction) / 2)


class PadAndCrop(ImageTransform):
    """A random shift by padding and cropping ("Deeply-Supervised Nets", Lee, 2014)."""

    PARAMS: ClassVar = {
        "padding": (4, "Pixels added on each side."),
        "fill": (0.5, "Value of the pixels added."),
    }
    RULES: ClassVar = {"padding": count(0), "fill": number_between(0, 1)}

    def Apply(self, image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        p = self.params
        margins = [[p.padding] * 2, [p.padding] * 2, [0, 0]]
        padded = tf.pad(image, margins, constant_values=p.fill)
        start = tf.random.stateless_uniform([2], seed, 0, 2 * p.padding + 1, tf.int32)
        moved = tf.slice(padded, tf.concat([start, [0]], axis=0), tf.shape(image))
        return tf.ensure_shape(moved, image.shape)


_MAX_ATTEMPTS = 100


class RandomAreaCrop(CropTransform):
    """A crop to a random window of random area and aspect ratio.

    From C. Szegedy et al., "Going Deeper with Convolutions" (2014), section 6. If none
    of a hundred windows fits, the whole image is kept. Inception allows 5 % of the
    area, but requires 10 % to be visible, so 10 % is its effective minimum.
    """

    PARAMS: ClassVar = {
        "area_range": ([0.1, 1.0], "Smallest and largest share of the image's area."),
        "aspect_ratio_range": (
            [3 / 4, 4 / 3],
            "Smallest and largest width by height.",
        ),
    }

    RULES: ClassVar = {
        "area_range": Rule(
            lambda x: _is_range(x) and x[1] <= 1,
            "two ascending shares of the image's area, above 0 and at most 1",
        ),
        "aspect_ratio_range": Rule(
            lambda x: _is_range(x),
            "two ascending, positive ratios of width to height",
        ),
    }

    def Window(self, shape: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        p = self.params
        begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
            shape,
            bounding_boxes=tf.constant([[[0.0, 0.0, 1.0, 1.0]]]),
            seed=seed,
            min_object_covered=0.0,
            aspect_ratio_range=list(p.aspect_ratio_range),
            area_range=list(p.area_range),
            max_attempts=_MAX_ATTEMPTS,
        )
        return tf.concat([begin[:2], size[:2]], axis=0)


def _is_range(value: Any) -> bool:
    return (
        isinstance(value, list | tuple)
        and len(value) == 2
        and all(isinstance(bound, int | float) for bound in value)
        and 0 < value[0] <= value[1]
    )


class Resize(ImageTransform):
    """A bilinear resize. By default, like Inception, it does not smooth."""

    PARAMS: ClassVar = {
        "height": (None, "Pixels from top to bottom."),
        "width": (None, "Pixels from left to right."),
        "antialias": (None, "True to smooth images that become smaller."),
    }
    RULES: ClassVar = {"height": count(1), "width": count(1)}

    def OutputShape(self, shape: ImageShape) -> ImageShape:
        return self.params.height, self.params.width, shape[2]

    def Apply(self, image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        p = self.params
        return tf.image.resize(image, [p.height, p.width], antialias=bool(p.antialias))


class RandomFlip(ImageTransform):
    """A flip of left and right with probability 1/2."""

    def Apply(self, image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        return tf.image.stateless_random_flip_left_right(image, seed)


class Cutout(ImageTransform):
    """A square that is painted over. Its center is a random pixel of the image.

    From T. DeVries and G. W. Taylor, "Improved Regularization of Convolutional Neural
    Networks with Cutout" (2017): size 16 for CIFAR-10, 8 for CIFAR-100.
    """

    PARAMS: ClassVar = {
        "size": (16, "Pixels of each side of the square."),
        "fill": (0.5, "Value of the pixels in the square."),
    }
    RULES: ClassVar = {"size": count(0), "fill": number_between(0, 1)}

    def Apply(self, image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        sides = tf.shape(image)[:2]
        share = tf.random.stateless_uniform([2], seed)
        center = tf.cast(share * tf.cast(sides, tf.float32), tf.int32)
        first = center - self.params.size // 2
        positions = (tf.range(sides[axis]) - first[axis] for axis in (0, 1))
        rows, columns = ((x >= 0) & (x < self.params.size) for x in positions)
        is_cut = rows[:, tf.newaxis, tf.newaxis] & columns[tf.newaxis, :, tf.newaxis]
        return tf.where(is_cut, tf.cast(self.params.fill, image.dtype), image)
