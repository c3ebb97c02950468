"""What a layer checks of the params that its weights' shapes are made of."""

from __future__ import annotations

import numbers
from typing import Any

from lingvo_pipe.hyperparams import InstantiableParams


def check_dimensions(p: InstantiableParams, where: str, *names: str) -> None:
    """Raises ValueError unless the params of these names are integers of at least 1.

    Args:
        p: the layer's params.
        where: the layer's path.
        *names: the params.
    """
    for name in names:
        if not _is_dimension(p.Get(name)):
            raise ValueError(
                f"{name} must be an integer of at least 1; that of {where} is "
                f"{p.Get(name)!r}. Set it in the layer's params."
            )


def _is_dimension(value: Any) -> bool:
    is_number = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    return is_number and int(value) >= 1
