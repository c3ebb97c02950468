"""A flag that is a number of things."""

from __future__ import annotations

import argparse


def at_least_one(text: str) -> int:
    """The number.

    Raises:
        argparse.ArgumentTypeError: if it is none, or below one.
    """
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(
            f"must be a whole number, at least 1; got {text!r}"
        )
    return int(text)
