"""How several faults stand in one error. Pure."""

from __future__ import annotations

from collections.abc import Sequence

_MAX_NAMED = 10


def listed(faults: Sequence[str]) -> str:
    """One sentence: the first faults, and how many more there are."""
    unnamed = len(faults) - _MAX_NAMED
    more = f"; and {unnamed} more faults" if unnamed > 0 else ""
    return "; ".join(faults[:_MAX_NAMED]) + more + "."
