"""Whether a cell is too large for a device that has no other. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from lingvo_pipe.planner.model_costs import ModelCosts


def bytes_alone(model: ModelCosts) -> Iterator[int]:
    """For each cell the least that its device needs, on however many devices.

    Its weights, totals of gradients and slots; and while its backward pass runs, what
    that needs of one micro-batch, and what works.

    Args:
        model: of its smallest micro-batches.
    """
    memory, last = model.memory, model.num_cells - 1
    for cell in range(model.num_cells):
        calls = cell, cell + 1 + (cell == last)  # The loss is with the last cell.
        _, residuals, _ = memory.computed(*calls)
        yield (
            memory.weights(*calls)
            + memory.totals(*calls)
            + model.slots(cell, cell + 1)
            + residuals
            + max(model.working[slice(*calls)])
        )
