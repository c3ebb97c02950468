"""Every way to split layers into stages."""

from __future__ import annotations

import itertools
from collections.abc import Iterator


def all_boundaries(num_layers: int, num_stages: int) -> Iterator[list[int]]:
    """Yields the boundaries of every split in which each stage has layers."""
    for middle in itertools.combinations(range(1, num_layers), num_stages - 1):
        yield [*middle, num_layers]
