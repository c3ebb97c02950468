r"""The stage boundaries that a value of `splits` defines.

    layers   0  1  2 | 3  4 | 5  6        boundaries = [3, 5, 7]
             stage 0   st. 1  stage 2

A boundary is the index after a stage's last layer. Stages are contiguous and never
empty, and every layer belongs to one.
"""

import itertools
from collections.abc import Sequence
from typing import Any

from lingvo_pipe.core.checks import is_integer
from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.pipeline.splitting.balance import balanced_boundaries

_AUTO = "auto"


def resolve_boundaries(splits: Any, num_layers: int) -> list[int]:
    """Returns the stage boundaries that `splits`, other than 'auto', defines.

    `splits` is a number of stages, or the list of the boundaries themselves. A number
    gives the stages equal numbers of layers where possible.

    Raises:
        ValueError: if `splits` is neither, or is impossible.
    """
    if is_integer(splits):
        return balanced_boundaries([1] * num_layers, splits)
    if not isinstance(splits, (list, tuple)):
        raise UserValueError(
            path="splits",
            expected=f"a number of stages, a list of stage boundaries or {_AUTO!r}",
            got=splits,
            hint="Write numbers without quotes." if isinstance(splits, str) else "",
        )
    _check_boundaries(splits, num_layers)
    return [int(boundary) for boundary in splits]


def _check_boundaries(boundaries: Sequence[Any], num_layers: int) -> None:
    if not boundaries:
        problems = ["there is no stage"]
    elif wrong := [end for end in boundaries if not is_integer(end)]:
        problems = [f"{end!r} is not an integer" for end in wrong]
    else:
        problems = [
            f"stage {stage} is empty, from {start} to {end}"
            for stage, (start, end) in enumerate(itertools.pairwise([0, *boundaries]))
            if end <= start
        ]
        if boundaries[-1] != num_layers:
            problems.append(f"the last is {boundaries[-1]}")
    if problems:
        raise UserValueError(
            path="splits",
            expected=f"boundaries that ascend up to the number of layers, {num_layers}",
            got=Words(f"{list(boundaries)!r}, where {', '.join(problems)}"),
            hint="For each stage give the number of layers, each slice counted, up to "
            "and including it.",
        )


def is_auto(splits: Any) -> bool:
    """Returns whether `splits` is 'auto'."""
    return isinstance(splits, str) and splits == _AUTO
