"""What a cell needs by itself is the least of all ways to run it."""

from __future__ import annotations

from lingvo_pipe.planner.cell_alone import bytes_alone
from tests.planner.made_up_model import every_needs


def test_no_stage_of_the_cell_needs_less() -> None:
    reached = 0
    for candidate, model, needs in every_needs():
        for cell, least in enumerate(bytes_alone(model)):
            for stage in range(candidate.num_stages):
                needed = needs.of_stage(stage, cell, cell + 1)
                assert least <= needed
                reached += least == needed
    assert reached  # Else it would be too little to tell.
