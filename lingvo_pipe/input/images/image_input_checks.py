"""Checks of an image input's params. Images have H x W pixels in C channels."""

from collections.abc import Sequence
from typing import Any

from lingvo_pipe.core.checks import is_count, is_number
from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.input.param_checks import check_params, is_name, seed_check
from lingvo_pipe.input.transforms.image_transform import ImageShape


def check_input(p: InstantiableParams) -> None:
    """Raises a ValueError that names every param that is unset or out of range."""
    is_pixel = p.pixel_max is None or (is_number(p.pixel_max) and p.pixel_max > 0)
    size = "a positive integer, two, for height and width, or None"
    labels = "a list of different integers of at least 0, or None"
    checks = {
        "dataset": (is_name(p.dataset), "a name"),
        "split": (is_name(p.split), "a name"),
        "batch_size": (is_count(p.batch_size), "a positive integer"),
        "random_seed": seed_check(p.random_seed),
        "pixel_max": (is_pixel, "a positive number or None"),
        "image_size": (p.image_size is None or all(map(is_count, _sides(p))), size),
        "channels": (p.channels in (None, 1, 3), "1, 3 or None"),
        "num_parallel_calls": _count_or_none(p.num_parallel_calls),
        "train_transforms": (isinstance(p.train_transforms, list | tuple), "a list"),
        "eval_transforms": (isinstance(p.eval_transforms, list | tuple), "a list"),
        "labels": (p.labels is None or _are_labels(p.labels), labels),
        "num_logits": _count_or_none(p.num_logits),
    }
    check_params(p, checks)


def check_labels(p: InstantiableParams, num_classes: int) -> None:
    """Raises a ValueError if a label is not a class of the data set."""
    if p.labels is not None and max(p.labels) >= num_classes:
        expected = f"labels below {num_classes}, the number of classes of {p.dataset}"
        raise UserValueError(path="input.labels", expected=expected, got=p.labels)


def check_num_logits(p: InstantiableParams, class_names: Sequence[str]) -> None:
    """Raises a ValueError if there are more classes than the model has."""
    if p.num_logits is not None and len(class_names) > p.num_logits:
        raise UserValueError(
            path="input.num_logits",
            expected=f"at least {len(class_names)}, the number of classes of "
            f"{p.dataset} (the last one is {class_names[-1]!r})",
            got=p.num_logits,
            hint="Use a model with more classes, or choose classes by input.labels.",
        )


def image_size(p: InstantiableParams) -> tuple[int, int] | None:
    """Returns (H, W) of the param `image_size`, or None."""
    return None if p.image_size is None else _sides(p)


def common_shape(
    train: ImageShape, evaluation: ImageShape, size: tuple[int, int] | None
) -> tuple[int, int, int]:
    """Returns all images' (H, W, C).

    Raises:
        ValueError: if this is not one fixed shape of `size`.
    """
    height, width, channels = train
    if height is None or width is None or train != evaluation:
        raise UserValueError(
            path="input.train_transforms and input.eval_transforms",
            expected="the same fixed (height, width, channels)",
            got=(train, evaluation),
            hint="Set input.image_size to the size that the model takes, or end both "
            "with a Resize to it.",
        )
    if size not in (None, (height, width)):
        expected = f"None or {[height, width]}, to which the transforms resize"
        raise UserValueError(path="input.image_size", expected=expected, got=list(size))
    return height, width, channels


def _sides(p: InstantiableParams) -> tuple[int, int]:
    """Returns `image_size` as (height, width), or (0, 0) for other values."""
    value = p.image_size
    sides = value if isinstance(value, list | tuple) else (value, value)
    return (sides[0], sides[1]) if len(sides) == 2 else (0, 0)


def _count_or_none(value: Any) -> tuple[bool, str]:
    return value is None or is_count(value), "a positive integer or None"


def _are_labels(value: Any) -> bool:
    is_list = isinstance(value, list | tuple) and 0 < len(value) == len(set(value))
    return is_list and all(is_count(label, 0) for label in value)
