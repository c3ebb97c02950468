"""The middle of the image."""

from __future__ import annotations

import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.input.transforms.crop_transform import CropTransform
from lingvo_pipe.input.transforms.image_transform import ImageShape


class CentralCrop(CropTransform):
    """Keeps the middle of the image, the same share of its height and its width."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        """Params: how much is kept; 0.875 as in Inception's evaluation."""
        p = super().Params()
        p.Define("fraction", 0.875, "Share of the height, and of the width, to keep.")
        return p

    def __init__(self, params: InstantiableParams) -> None:
        super().__init__(params)
        fraction = params.fraction
        if not isinstance(fraction, int | float) or not 0 < fraction <= 1:
            raise ValueError(
                f"fraction must be above 0 and at most 1; got {fraction!r}. Set it in "
                "the params of CentralCrop."
            )

    def OutputShape(self, shape: ImageShape) -> ImageShape:
        height, width = (
            None if side is None else side - 2 * self._Margin(side)
            for side in shape[:2]
        )
        return height, width, shape[2]

    def Window(self, shape: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        sides = shape[:2]
        wide = tf.cast(sides, tf.float64)
        margins = tf.cast((wide - wide * self.params.fraction) / 2, tf.int32)
        return tf.concat([margins, sides - 2 * margins], axis=0)

    def _Margin(self, side: int) -> int:
        """What is cut off before, and after; rounded down."""
        return int((side - side * self.params.fraction) / 2)
