"""What a layer checks of its inputs' shapes, where TensorFlow would not notice."""

from __future__ import annotations

import tensorflow as tf


def check_channels(inputs: tf.Tensor, num_channels: int, where: str) -> None:
    """Raises ValueError unless `inputs` are `[..., num_channels]`."""
    shape = inputs.shape
    if not shape.rank or shape[-1] != num_channels:
        raise ValueError(
            f"The inputs' last dimension must be the layer's {num_channels} channels; "
            f"{where} got inputs of shape {shape}. Check the layer's params and those "
            "of the layer before."
        )
