r"""Which layers make up which stage. Pure.

    layers   0  1  2 | 3  4 | 5  6        ends = [3, 5, 7]
             stage 0   st. 1  stage 2

A split is written as the ends of its stages: the number of layers up to and including
each. Stages are contiguous and never empty, and every layer belongs to one.
"""

from __future__ import annotations

import itertools
import numbers
from collections.abc import Sequence
from typing import Any, TypeGuard

from lingvo_pipe.pipeline.splitting.allowed_stages import Farthest
from lingvo_pipe.pipeline.splitting.balance import balanced_ends

_AUTO = "auto"


def resolve_ends(
    splits: int | str | Sequence[int],
    num_layers: int,
    num_stages: int | None = None,
    costs: Sequence[float] | None = None,
    traffic: Sequence[float] | None = None,
    farthest: Farthest | None = None,
) -> list[int]:
    """The ends of the stages that `splits` means.

    Args:
        splits: the number of stages, of as even a number of layers as can be; or the
            ends themselves; or 'auto', which balances the costs.
        num_layers: at least 1.
        num_stages: that there must be; None: as `splits` says, unless that is 'auto'.
        costs: of each layer, for 'auto'.
        traffic: what each layer hands on, for 'auto'; of splits of equal costs the one
            with least at its boundaries is taken.
        farthest: for 'auto', how far each stage may reach; see `balanced_ends`.

    Raises:
        ValueError: if it is none of these, impossible, or not of `num_stages`.
    """
    if is_auto(splits):
        return _automatic_ends(num_layers, num_stages, costs, traffic, farthest)
    if _is_integer(splits):
        ends = balanced_ends([1] * num_layers, splits)
    elif isinstance(splits, (list, tuple)):
        check_ends(splits, num_layers)
        ends = [int(end) for end in splits]
    else:
        is_text = isinstance(splits, str)
        raise ValueError(
            "splits must be a number of stages, a list of the ends of the stages, or "
            f"{_AUTO!r}; got {splits!r}. "
            + ("Write numbers without quotes." if is_text else "Set it to 1 for one.")
        )
    if num_stages is not None and len(ends) != num_stages:
        raise ValueError(
            f"splits must make {num_stages} stages; {splits!r} makes {len(ends)}. Set "
            f"splits={num_stages}, or change the number of devices."
        )
    return ends


def _automatic_ends(
    num_layers: int,
    num_stages: int | None,
    costs: Sequence[float] | None,
    traffic: Sequence[float] | None,
    farthest: Farthest | None,
) -> list[int]:
    missing = []
    if num_stages is None:
        missing.append(
            "there is no number of stages; set devices, or splits to a number."
        )
    if costs is None:
        missing.append(
            "there are no costs; set them, for instance to the flops of cell_costs."
        )
    elif len(costs) != num_layers:
        missing.append(
            f"there are {len(costs)} costs for {num_layers} layers; give one for each."
        )
    if missing or num_stages is None or costs is None:
        raise ValueError(
            f"splits={_AUTO!r} balances the costs of the layers over a number of "
            f"stages; {' And '.join(missing)}"
        )
    return balanced_ends(costs, num_stages, traffic, farthest)


def check_ends(ends: Sequence[int], num_layers: int) -> None:
    """Raises ValueError unless `ends` ascends strictly from 1 up to `num_layers`."""
    faults = _faults(ends, num_layers)
    if faults:
        raise ValueError(
            "splits must list the ends of the stages: integers that ascend strictly up "
            f"to the number of layers, {num_layers}; in {list(ends)!r} "
            f"{', '.join(faults)}. Give for each stage the number of layers up to "
            "and including it."
        )


def _faults(ends: Sequence[Any], num_layers: int) -> list[str]:
    if not ends:
        return ["there is no stage"]
    wrong = [end for end in ends if not _is_integer(end)]
    if wrong:
        return [f"{end!r} is no integer" for end in wrong]
    faults = [
        f"stage {stage} is empty, from {start} to {end}"
        for stage, (start, end) in enumerate(itertools.pairwise([0, *ends]))
        if end <= start
    ]
    if ends[-1] != num_layers:
        faults.append(f"the last is {ends[-1]}")
    return faults


def is_auto(splits: Any) -> bool:
    """Whether `splits` leaves the number of stages to the devices."""
    return isinstance(splits, str) and splits == _AUTO


def is_count(value: Any) -> bool:
    """Whether a value is an integer of at least 1."""
    return _is_integer(value) and value >= 1


def _is_integer(value: Any) -> TypeGuard[int]:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)
