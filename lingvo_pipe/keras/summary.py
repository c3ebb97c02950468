"""Summary of a pipelined model: its cells by stage and device."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence

from lingvo_pipe.core.quantities import bytes_text
from lingvo_pipe.core.tables import text_table
from lingvo_pipe.keras.cell_calls import CellCalls
from lingvo_pipe.pipeline.devices.device_names import device_name
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer

_NAMES_WIDTH = 60


def summary_lines(
    name: str, pipe: PipeliningLayer, cells: Sequence[CellCalls]
) -> list[str]:
    """Returns the lines of a table with a row for each cell, and what they add up to.

    Seeds are no parameters, and a shared variable belongs to its first cell.
    """
    rows = [["Stage", "Device", "Cell", "Layers", "Param #"]]
    total = total_bytes = 0
    for i, cell in enumerate(cells):
        number = 0
        for v, kind, owned in zip(cell.variables, cell.kinds, cell.owned, strict=True):
            if owned and kind.name != "seed":
                number += math.prod(v.shape)
                total_bytes += v.value.dtype.size * math.prod(v.shape)
        total += number
        stage = pipe.stage_of_cell(i)
        devices = [device_name(replica[stage]).short for replica in pipe.replicas]
        names = ", ".join(dict.fromkeys(call.operation.name for call in cell.calls))
        shown = textwrap.shorten(names, _NAMES_WIDTH, placeholder=" ...")
        rows.append([str(stage), ", ".join(devices), str(i), shown, f"{number:,}"])
    return [
        f'Model: "{name}"',
        *text_table(rows, right=[4]),
        f"Total params: {total:,} ({bytes_text(total_bytes)})",
    ]
