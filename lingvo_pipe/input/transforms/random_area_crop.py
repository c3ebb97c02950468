"""A random part of the image, of random size and aspect ratio.

After C. Szegedy et al., "Going Deeper with Convolutions" (2014), section 6.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.input.transforms.crop_transform import CropTransform

_MAX_ATTEMPTS = 100


class RandomAreaCrop(CropTransform):
    """Keeps a random window of random area and aspect ratio.

    Windows are drawn until one fits into the image. None of a hundred may, if the image
    is much longer than wide; then the whole image is kept.
    """

    @classmethod
    def Params(cls) -> InstantiableParams:
        """Params: the window's area and aspect ratio.

        Inception's preprocessing allows a twentieth of the area, but also demands that
        a tenth of the image be seen, so that a tenth is its least.
        """
        p = super().Params()
        p.Define(
            "area_range", [0.1, 1.0], "Least and largest share of the image's area."
        )
        p.Define(
            "aspect_ratio_range", [3 / 4, 4 / 3], "Least and largest width by height."
        )
        return p

    def __init__(self, params: InstantiableParams) -> None:
        super().__init__(params)
        p = params
        if not _is_range(p.area_range) or p.area_range[1] > 1:
            raise ValueError(
                "area_range must be two shares of the image's area, above 0 and at "
                f"most 1, the least first; got {p.area_range!r}. Set it in the params "
                "of RandomAreaCrop."
            )
        if not _is_range(p.aspect_ratio_range):
            raise ValueError(
                "aspect_ratio_range must be two positive ratios of width to height, "
                f"the least first; got {p.aspect_ratio_range!r}. Set it in the params "
                "of RandomAreaCrop."
            )

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
