"""Which params, and which images, a transform is made for."""

from __future__ import annotations

import math

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.input.transforms.image_transform import ImageShape


def check_number(
    params: InstantiableParams, name: str, least: float, most: float = math.inf
) -> None:
    """Raises a ValueError unless the param is a number from `least` to `most`."""
    _check(params, name, (int, float), "a number", least, most)


def check_int(params: InstantiableParams, name: str, least: int) -> None:
    """Raises a ValueError unless the param is an int of at least `least`."""
    _check(params, name, (int,), "an int", least, math.inf)


def check_is_rgb(params: InstantiableParams, shape: ImageShape) -> None:
    """Raises a ValueError unless images of `shape` (H, W, C) have 3 channels."""
    if shape[2] != 3:
        raise ValueError(
            f"{params.cls.__name__} needs images of 3 channels: red, green and blue; "
            f"got {shape[2]}. Leave it out for these images."
        )


def _check(
    params: InstantiableParams,
    name: str,
    types: tuple[type, ...],
    kind: str,
    least: float,
    most: float,
) -> None:
    value = params.Get(name)
    is_kind = isinstance(value, types) and not isinstance(value, bool)
    if is_kind and least <= value <= most:
        return
    bounds = f"of at least {least}" if math.isinf(most) else f"from {least} to {most}"
    raise ValueError(
        f"{name} must be {kind} {bounds}; got {value!r}. Set it in the params of "
        f"{params.cls.__name__}."
    )
