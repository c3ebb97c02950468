"""A sequence of transforms of images `[H, W, C]`. Seeds are int64 `[2]`."""

from collections.abc import Callable, Sequence

import tensorflow as tf

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.input.transforms.colors import Channels
from lingvo_pipe.input.transforms.geometry import CropTransform, Resize
from lingvo_pipe.input.transforms.image_transform import (
    ImageShape,
    ImageTransform,
    nth_seed,
)

ChooseWindow = Callable[[tf.Tensor], tf.Tensor]


class TransformChain:
    """Transforms in order, made from their params, each with its own random numbers.

    A crop that comes first is separate, because it can be done while decoding.
    `conversion` says what `fitting_chain` added.

    Raises:
        ValueError: if a template is invalid, or does not support its images.
    """

    def __init__(
        self,
        templates: Sequence[InstantiableParams],
        shape: ImageShape,
        conversion: str = "",
    ) -> None:
        self.conversion = conversion
        self._transforms: list[ImageTransform] = []
        for template in templates:
            is_template = isinstance(template, InstantiableParams)
            cls = template.cls if is_template else None
            if not isinstance(cls, type) or not issubclass(cls, ImageTransform):
                raise UserValueError(
                    path="input.train_transforms, input.eval_transforms",
                    expected="params of subclasses of ImageTransform, such as "
                    "RandomFlip.Params()",
                    got=template,
                )
            self._transforms.append(template.Instantiate())
            shape = self._transforms[-1].OutputShape(shape)
        self.output_shape = shape

    def first_window(self, seed: tf.Tensor) -> ChooseWindow | None:
        """Returns the first transform's `shape -> window`, or None if it is no crop."""
        if not self._transforms or not isinstance(self._transforms[0], CropTransform):
            return None
        first = self._transforms[0]
        return lambda shape: first.Window(shape, nth_seed(seed, 0))

    def apply_after_window(self, image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Applies all transforms but an initial crop to a float32 image `[H, W, C]`."""
        for index, transform in enumerate(self._transforms):
            if index or not isinstance(transform, CropTransform):
                image = transform.Apply(image, nth_seed(seed, index))
        return image


def fitting_chain(
    templates: Sequence[InstantiableParams],
    shape: ImageShape,
    size: tuple[int, int] | None,
    channels: int | None,
) -> TransformChain:
    """Returns a chain of `templates`, preceded by conversions if necessary.

    Images of another number of channels are converted to `channels`. Images are resized
    to `size` if the chain would output another size.
    """
    first, words = [], []
    if channels not in (None, shape[2]):
        first.append(Channels.Params().Set(channels=channels))
        number = "1 channel" if channels == 1 else f"{channels} channels"
        words.append(f"converted to {number} (param input.channels)")
    chain = TransformChain([*first, *templates], shape, " and ".join(words))
    if size in (None, chain.output_shape[:2]):
        return chain
    height, width = size
    resize = Resize.Params().Set(height=height, width=width, antialias=True)
    words.append(f"resized to {height} x {width} pixels (param input.image_size)")
    return TransformChain([resize, *first, *templates], shape, " and ".join(words))
