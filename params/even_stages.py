"""Where published models are cut: their flops are as even as can be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.pipeline.splitting.balance import balanced_ends
from lingvo_pipe.pipeline.splitting.cell_costs import cell_costs


def even_stages(
    cells: Sequence[InstantiableParams], num_stages: int, *shapes: Any
) -> int | list[int]:
    """Returns a pipeline's `splits`: the ends of the stages; for a single one, 1.

    Args:
        cells: params of the layers.
        num_stages: K.
        *shapes: of an example's inputs; see `cell_costs`.
    """
    if num_stages == 1:
        return 1  # A list would be at odds with --devices=2.
    costs = cell_costs(cells, *shapes)
    return balanced_ends(costs.flops, num_stages, costs.handed_on)
