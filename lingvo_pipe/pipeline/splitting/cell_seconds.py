"""How long a cell takes. Pure."""

from __future__ import annotations

from typing import NamedTuple

# A backward pass has two products of matrices for each that its forward pass has.
BACKWARD_PER_FORWARD = 2


class CellSeconds(NamedTuple):
    """What a cell takes for a micro-batch.

    Attributes:
        forward: of a forward pass that keeps what the backward needs.
        backward: of the backward pass.
    """

    forward: float
    backward: float
