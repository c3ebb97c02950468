"""What an image input demands of its params.

Shapes: images of H x W pixels in C channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.input.transforms.image_transform import ImageShape


def check_params(p: InstantiableParams) -> None:
    """Raises a ValueError that names every param that is unset or out of range."""
    faults = []
    for name in ("dataset", "split"):
        value = p.Get(name)
        if not isinstance(value, str) or not value:
            faults.append(f"{name} must be a name; got {value!r}")
    if not _is_int(p.batch_size, 1):
        faults.append(f"batch_size must be a positive int; got {p.batch_size!r}")
    if not _is_int(p.random_seed, 0) or p.random_seed >= 2**64:
        faults.append(
            f"random_seed must be an int from 0 to 2**64 - 1; got {p.random_seed!r}"
        )
    if not isinstance(p.pixel_max, int | float) or not p.pixel_max > 0:
        faults.append(f"pixel_max must be a positive number; got {p.pixel_max!r}")
    if p.num_parallel_calls is not None and not _is_int(p.num_parallel_calls, 1):
        faults.append(
            "num_parallel_calls must be a positive int or None; got "
            f"{p.num_parallel_calls!r}"
        )
    for name in ("train_transforms", "eval_transforms"):
        if not isinstance(p.Get(name), list | tuple):
            faults.append(f"{name} must be a list; got {p.Get(name)!r}")
    if p.labels is not None and not _are_labels(p.labels):
        faults.append(
            "labels must be a list of different ints of at least 0, or None; got "
            f"{p.labels!r}"
        )
    if p.num_logits is not None and not _is_int(p.num_logits, 1):
        faults.append(
            f"num_logits must be a positive int or None; got {p.num_logits!r}"
        )
    if faults:
        raise ValueError(
            f"{'; '.join(faults)}. Set them in the params of ImageClassificationInput."
        )


def check_labels(p: InstantiableParams, num_classes: int) -> None:
    """Raises a ValueError unless all labels are those of classes of the data set."""
    if p.labels is not None and max(p.labels) >= num_classes:
        raise ValueError(
            f"labels must be below {num_classes}, the number of classes of "
            f"{p.dataset}; got {list(p.labels)}. Leave out the others."
        )


def check_num_logits(p: InstantiableParams, class_names: Sequence[str]) -> None:
    """Raises a ValueError if there are more classes than the model tells apart."""
    if p.num_logits is not None and len(class_names) > p.num_logits:
        raise ValueError(
            f"num_logits must be at least {len(class_names)}, the number of classes "
            f"that are read of {p.dataset}, the last of them {class_names[-1]!r}; got "
            f"{p.num_logits}, that of the model. Use a model of as many, or choose "
            "some of the classes by labels."
        )


def common_shape(train: ImageShape, evaluation: ImageShape) -> tuple[int, int, int]:
    """Returns the shape (H, W, C) that all images get, for training and evaluation.

    Raises:
        ValueError: If they do not all get the same.
    """
    height, width, channels = train
    if height is None or width is None or train != evaluation:
        raise ValueError(
            "train_transforms and eval_transforms must make all images alike, as "
            f"(height, width, channels); got {train} and {evaluation}. End both with "
            "a Resize to the same size."
        )
    return height, width, channels


def _is_int(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _are_labels(value: Any) -> bool:
    is_list = isinstance(value, list | tuple) and len(value) > 0
    return (
        is_list and len(set(value)) == len(value) and all(_is_int(v, 0) for v in value)
    )
