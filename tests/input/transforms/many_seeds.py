"""The outputs of a transform for one image and many seeds."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from lingvo_pipe.input.transforms.geometry import CropTransform, keep_window
from lingvo_pipe.input.transforms.image_transform import ImageTransform
from lingvo_pipe.input.transforms.transform_chain import TransformChain


def seed(number: int) -> tf.Tensor:
    """A seed, int64 [2]."""
    return tf.constant([17, number], tf.int64)


def random_image(*shape: int, number: int = 0) -> np.ndarray:
    """A float32 image of random pixels from 0 to 1."""
    return np.random.default_rng(number).random(shape, np.float32)


def apply_many(
    transform: ImageTransform, image: np.ndarray, num_seeds: int
) -> np.ndarray:
    """Returns [num_seeds, H, W, C]: the image transformed with each seed."""
    return _map(lambda s: transform.Apply(tf.constant(image), s), num_seeds, tf.float32)


def run_chain(templates: list, image: np.ndarray, number: int = 0) -> np.ndarray:
    """Returns an image after all transforms, with a seed."""
    chain = TransformChain(templates, (None, None, image.shape[2]))
    choose = chain.first_window(seed(number))
    if choose is not None:
        image = keep_window(image, choose(tf.shape(image)))
    return chain.apply_after_window(tf.constant(image), seed(number)).numpy()


def windows(
    transform: CropTransform, shape: tuple[int, int, int], num_seeds: int
) -> np.ndarray:
    """Returns [num_seeds, 4]: the window chosen with each seed."""
    return _map(lambda s: transform.Window(tf.constant(shape), s), num_seeds, tf.int32)


def _map(function, num_seeds: int, dtype: tf.DType) -> np.ndarray:
    seeds = tf.stack([seed(number) for number in range(num_seeds)])
    run = tf.function(lambda: tf.map_fn(function, seeds, fn_output_signature=dtype))
    return run().numpy()
