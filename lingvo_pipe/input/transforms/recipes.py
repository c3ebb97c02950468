"""Transforms for the published experiments, as params of an image input.

    ImageClassificationInput.Params().Set(dataset="imagenet2012", **imagenet(480))

All transformed images have values from -1 to 1.
"""

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.input.transforms.colors import ChromaShift, Normalization
from lingvo_pipe.input.transforms.geometry import (
    CentralCrop,
    Cutout,
    PadAndCrop,
    RandomAreaCrop,
    RandomFlip,
    Resize,
)

Recipe = dict[str, list[InstantiableParams]]


def imagenet(size: int) -> Recipe:
    """Returns Inception's preprocessing to size x size, as in AmoebaNet's program."""
    resize = Resize.Params().Set(height=size, width=size)
    return _recipe(
        [RandomAreaCrop.Params(), resize, RandomFlip.Params(), ChromaShift.Params()],
        [CentralCrop.Params(), resize.Copy()],
    )


def cifar(cutout_size: int = 16) -> Recipe:
    """Returns CIFAR's usual shift, flip and cutout. CIFAR-100 uses cutout_size=8."""
    cutout = Cutout.Params().Set(size=cutout_size)
    return _recipe([PadAndCrop.Params(), RandomFlip.Params(), cutout], [])


def transfer(size: int) -> Recipe:
    """Returns GPipe's preprocessing for transfer: resize, flip, cutout.

    From Y. Huang et al., "GPipe" (2019), section 4, with size 480. The paper states no
    size of the square: it is half the image's side, as for CIFAR-10 in Cutout's paper.
    """
    resize = Resize.Params().Set(height=size, width=size)
    cutout = Cutout.Params().Set(size=size // 2)
    return _recipe([resize, RandomFlip.Params(), cutout], [resize.Copy()])


def _recipe(
    train: list[InstantiableParams], evaluation: list[InstantiableParams]
) -> Recipe:
    return {
        "train_transforms": [*train, Normalization.Params()],
        "eval_transforms": [*evaluation, Normalization.Params()],
    }
