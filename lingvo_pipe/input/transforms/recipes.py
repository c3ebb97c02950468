"""Transforms for the published experiments, as params of an image input.

    ImageClassificationInput.Params().Set(
        dataset="imagenet2012", split="train", batch_size=256, **imagenet(480)
    )

All images come out with values from -1 to 1.
"""

from __future__ import annotations

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.input.transforms.central_crop import CentralCrop
from lingvo_pipe.input.transforms.chroma_shift import ChromaShift
from lingvo_pipe.input.transforms.cutout import Cutout
from lingvo_pipe.input.transforms.normalization import Normalization
from lingvo_pipe.input.transforms.pad_and_crop import PadAndCrop
from lingvo_pipe.input.transforms.random_area_crop import RandomAreaCrop
from lingvo_pipe.input.transforms.random_flip import RandomFlip
from lingvo_pipe.input.transforms.resize import Resize

Recipe = dict[str, list[InstantiableParams]]


def imagenet(size: int) -> Recipe:
    """Returns the preprocessing of AmoebaNet's published program, which is Inception's.

    Args:
        size: Height and width of the images to make.
    """
    return {
        "train_transforms": [
            RandomAreaCrop.Params(),
            _resize(size),
            RandomFlip.Params(),
            ChromaShift.Params(),
            Normalization.Params(),
        ],
        "eval_transforms": [
            CentralCrop.Params(),
            _resize(size),
            Normalization.Params(),
        ],
    }


def cifar(cutout_size: int = 16) -> Recipe:
    """Returns the usual preprocessing of CIFAR: moved, flipped, cut out.

    Args:
        cutout_size: The side of Cutout's square: 16 for CIFAR-10, 8 for CIFAR-100.
    """
    return {
        "train_transforms": [
            PadAndCrop.Params(),
            RandomFlip.Params(),
            Cutout.Params().Set(size=cutout_size),
            Normalization.Params(),
        ],
        "eval_transforms": [Normalization.Params()],
    }


def transfer(size: int) -> Recipe:
    """Returns GPipe's preprocessing for transfer: resized, flipped, cut out.

    After Y. Huang et al., "GPipe" (2019), section 4, where size is 480. The size of the
    square is not given there; it is half the image's side, as on CIFAR-10 in Cutout's
    paper.

    Args:
        size: Height and width of the images to make.
    """
    return {
        "train_transforms": [
            _resize(size),
            RandomFlip.Params(),
            Cutout.Params().Set(size=size // 2),
            Normalization.Params(),
        ],
        "eval_transforms": [_resize(size), Normalization.Params()],
    }


def _resize(size: int) -> InstantiableParams:
    return Resize.Params().Set(height=size, width=size)
