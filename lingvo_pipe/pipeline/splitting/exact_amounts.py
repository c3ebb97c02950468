"""Costs and sizes that users give, compared and added up without rounding. Pure.

An amount counts as the decimal that it prints as: three times 0.1 is 0.3.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from fractions import Fraction
from typing import Any


def as_integers(amounts: Sequence[float]) -> tuple[list[int], int]:
    """Integers in the proportion of the amounts, and how many times as large."""
    exact = [Fraction(str(amount)) for amount in amounts]
    scale = math.lcm(*(amount.denominator for amount in exact))
    return [int(amount * scale) for amount in exact], scale


def is_amount(value: Any) -> bool:
    """Whether a value is a finite number, not negative."""
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return is_number and 0 <= value < math.inf


def amount_faults(name: str, values: Sequence[Any], num_layers: int) -> list[str]:
    """What is wrong with values that should be an amount for each layer."""
    faults = []
    if len(values) != num_layers:
        faults.append(
            f"{name} must be a number for each of the {num_layers} layers; got "
            f"{len(values)}."
        )
    wrong = [f"{v!r} for layer {i}" for i, v in enumerate(values) if not is_amount(v)]
    if wrong:
        faults.append(
            f"{name} must be finite numbers, not negative; got {', '.join(wrong)}."
        )
    return faults
