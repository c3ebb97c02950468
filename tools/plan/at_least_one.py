"""A flag that is a number of things."""

from __future__ import annotations

import argparse


def at_least_one(text: str) -> int:
    """The number.

    Raises:
        argparse.ArgumentTypeError: if it is below one.
    """
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1; got {number}")
    return number
