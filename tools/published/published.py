"""Prints GPipe's tables 1, 2 and 3 (1811.06965) with the planner's predictions.

    tools/bazel run //tools/published

Takes some minutes, and prints tables in Markdown. Table 1 is in memory_tables.py.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from lingvo_pipe.core.tables import markdown_header, markdown_row
from lingvo_pipe.core.tensorflow_startup import importing_tensorflow

with importing_tensorflow():
    from lingvo_pipe.pipeline.schedules.by_name import make_schedule
    from lingvo_pipe.pipeline.simulation.simulate import simulate
    from lingvo_pipe.pipeline.splitting.balance import balanced_boundaries
    from lingvo_pipe.pipeline.splitting.cell_costs import CellSeconds
    from lingvo_pipe.planner.costs.flops_time_model import flops_time
    from lingvo_pipe.planner.resources.known_devices import DEVICES
    from lingvo_pipe.planner.search.candidate_evaluation import step_costs
    from tools.published.memory_tables import (
        AMOEBANETS,
        TRANSFORMERS,
        largest_filters_table,
        largest_layers_table,
        memory_table,
    )
    from tools.published.paper_models import PaperModel, paper_model

_NUM_MICRO_BATCHES = 32
_NUM_DEVICES = (2, 4, 8)


class Throughput(NamedTuple):
    """A row of table 2 or 3 for M = 32, with published numbers for 2, 4 and 8 devices.

    Table 2 is for fast links. Its throughput is relative to devices that compute the
    whole mini-batch one after the other. Table 3 is for slow links. Its throughput is
    relative to two devices.
    """

    table: int
    name: str
    num_layers: int
    num_filters: int | None  # None for Transformers.
    device: str
    published: tuple[float, float, float]

    @property
    def model(self) -> PaperModel:
        return paper_model(self.num_layers, self.num_filters)


TRANSFORMER_48 = Throughput(2, "Transformer-48", 48, None, "TPUv3", (1.8, 3.4, 6.3))
TRANSFORMER_24 = Throughput(3, "Transformer-24", 24, None, "P100", (1.0, 1.8, 3.3))
_ROWS = (
    TRANSFORMER_48,
    Throughput(2, "AmoebaNet-D (18, 256)", 18, 256, "TPUv2", (1.21, 1.84, 3.48)),
    TRANSFORMER_24,
    Throughput(3, "AmoebaNet-D (18, 128)", 18, 128, "P100", (1.0, 1.7, 2.7)),
)


def predict_throughput(row: Throughput) -> list[float]:
    """Returns the predicted throughput of a row on 2, 4 and 8 devices."""
    model, device = row.model, row.device
    steps = [
        model.evenly(device, num_devices, _NUM_MICRO_BATCHES).step_seconds
        for num_devices in _NUM_DEVICES
    ]
    base = model.sequential_seconds(device) if row.table == 2 else steps[0]
    return [base / seconds for seconds in steps]


def throughput_table() -> Iterator[str]:
    """Yields lines of a table of published and predicted throughput."""
    columns = (*(f"K = {number}" for number in _NUM_DEVICES), "K = 8 / K = 2")
    predicted = [text for name in columns for text in (name, "predicted")]
    yield from markdown_header(["table", "model", "devices", *predicted])
    for row in _ROWS:
        yield throughput_row(row, predict_throughput(row))
        if row is TRANSFORMER_24:
            name = f"{row.name}, in half layers"
            yield throughput_row(row._replace(name=name), in_half_layers(row))


def in_half_layers(row: Throughput) -> list[float]:
    """Returns predictions for table 3 with attention and feed-forward as two cells.

    Attention takes 4·D² + 2·T·D multiplications per token and feed-forward 2·D·F, with
    D = 2048, F = 8192 and T = 1024.
    """
    attention = 4 * 2048**2 + 2 * 1024 * 2048
    share = attention / (attention + 2 * 2048 * 8192)
    costs = row.model.costs(_NUM_MICRO_BATCHES)
    first, *layers, last = flops_time(costs, DEVICES[row.device], "float32")
    halves = itertools.product(layers, (share, 1 - share))
    cells = [CellSeconds(part * x.forward, part * x.backward) for x, part in halves]
    cells = [first, *cells, last]
    steps = [step_seconds(row, cells, number) for number in _NUM_DEVICES]
    return [steps[0] / seconds for seconds in steps]


def step_seconds(
    row: Throughput, cells: Sequence[CellSeconds], num_devices: int
) -> float:
    """Returns the seconds of a step with the most even stages, without the update.

    `cells` are the seconds of layers, or of parts of layers. All send the same bytes.
    """
    sent = row.model.costs(_NUM_MICRO_BATCHES).boundary_bytes[1]
    boundaries = balanced_boundaries(list(map(sum, cells)), num_devices)
    devices = [DEVICES[row.device]] * num_devices
    costs = step_costs(cells, [sent] * len(cells), boundaries, devices)
    schedule = make_schedule("gpipe", num_devices, _NUM_MICRO_BATCHES, 1, "always")
    return simulate(schedule, costs).step_seconds


def throughput_row(row: Throughput, ours: Sequence[float]) -> str:
    """Returns a line of the table, with published numbers and predictions `ours`."""
    pairs = zip(row.published, ours, strict=True)
    return markdown_row(
        *(row.table, row.name, row.device),
        *(text for a, b in pairs for text in (f"{a:g}", f"{b:.2f}")),
        *(f"{values[-1] / values[0]:.2f}" for values in (row.published, ours)),
    )


def main() -> int:
    """Prints tables of published numbers and predictions."""
    memory = memory_table(TRANSFORMERS), memory_table(AMOEBANETS)
    largest = largest_layers_table(), largest_filters_table()
    for table in (*memory, *largest, throughput_table()):
        for line in (*table, ""):
            print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
