"""Tables 2 and 3 of GPipe (1811.06965) beside what the planner predicts: speed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from lingvo_pipe.pipeline.schedules.by_name import make_schedule
from lingvo_pipe.pipeline.simulation.simulate import simulate
from lingvo_pipe.pipeline.splitting.balance import balanced_ends
from lingvo_pipe.pipeline.splitting.cell_seconds import CellSeconds
from lingvo_pipe.planner.counted_seconds import counted_seconds
from lingvo_pipe.planner.device_model import DEVICES
from lingvo_pipe.planner.evaluation import step_costs
from tools.plan.paper_models import PaperModel, amoebanet, transformer

_NUM_MICRO_BATCHES = 32
_NUM_DEVICES = (2, 4, 8)


class Speeds(NamedTuple):
    """A row of tables 2 and 3 for M = 32.

    Attributes:
        table: 2: relative to devices that take turns with the whole mini-batch; 3:
            relative to K = 2.
        name: of the model.
        model: the model.
        device: the kind of devices.
        published: on 2, 4 and 8 of them.
    """

    table: int
    name: str
    model: PaperModel
    device: str
    published: tuple[float, float, float]


def transformer_48() -> Speeds:
    """Of table 2, over fast links."""
    return Speeds(2, "Transformer-48", transformer(48), "TPUv3", (1.8, 3.4, 6.3))


def transformer_24() -> Speeds:
    """Of table 3, over slow links."""
    return Speeds(3, "Transformer-24", transformer(24), "P100", (1.0, 1.8, 3.3))


def _rows() -> Iterator[Speeds]:
    yield transformer_48()
    model = amoebanet(18, 256)
    yield Speeds(2, "AmoebaNet-D (18, 256)", model, "TPUv2", (1.21, 1.84, 3.48))
    yield transformer_24()
    model = amoebanet(18, 128)
    yield Speeds(3, "AmoebaNet-D (18, 128)", model, "P100", (1.0, 1.7, 2.7))


def throughputs(speeds: Speeds) -> list[float]:
    """What the planner predicts, on as many devices and relative to the same."""
    steps = [
        speeds.model.evenly(speeds.device, number, _NUM_MICRO_BATCHES).step_seconds
        for number in _NUM_DEVICES
    ]
    base = steps[0]
    if speeds.table == 2:
        base = speeds.model.seconds_in_turn(speeds.device)
    return [base / seconds for seconds in steps]


def throughput_table() -> Iterator[str]:
    """Lines of a table."""
    yield (
        "| table | model | devices | K = 2 | predicted | K = 4 | predicted | K = 8 | "
        "predicted | K = 8 / K = 2 | predicted |"
    )
    yield "|" + "---|" * 11
    for speeds in _rows():
        yield throughput_row(speeds, throughputs(speeds))
        if speeds.model is transformer(24):
            name = f"{speeds.name}, in half layers"
            yield throughput_row(speeds._replace(name=name), in_half_layers(speeds))


def in_half_layers(speeds: Speeds) -> list[float]:
    """As `throughputs` of table 3, were attention and feed-forward cells of their own.

    Attention is 4·D² + 2·T·D multiplications a token and feed-forward 2·D·F, with
    D = 2048, F = 8192 and T = 1024.
    """
    attention = 4 * 2048**2 + 2 * 1024 * 2048
    share = attention / (attention + 2 * 2048 * 8192)
    costs = speeds.model.costs(_NUM_MICRO_BATCHES)
    first, *layers, last = counted_seconds(costs, DEVICES[speeds.device], "float32")
    halves = [
        CellSeconds(part * layer.forward, part * layer.backward)
        for layer in layers
        for part in (share, 1 - share)
    ]
    cells = [first, *halves, last]
    steps = [step_seconds(speeds, cells, number) for number in _NUM_DEVICES]
    return [steps[0] / seconds for seconds in steps]


def step_seconds(
    speeds: Speeds, cells: Sequence[CellSeconds], num_devices: int
) -> float:
    """Of cells in the most even stages, without the update.

    Args:
        speeds: of the model, all of whose layers hand on as much.
        cells: a layer each, or parts of layers.
        num_devices: K.
    """
    handed_on = speeds.model.costs(_NUM_MICRO_BATCHES).crossing[1]
    ends = balanced_ends([each.forward + each.backward for each in cells], num_devices)
    crossing = [handed_on] * len(cells)
    costs = step_costs(cells, crossing, ends, DEVICES[speeds.device])
    policy = "always"
    schedule = make_schedule("gpipe", num_devices, _NUM_MICRO_BATCHES, 1, policy)
    return simulate(schedule, costs).step_seconds


def throughput_row(speeds: Speeds, ours: Sequence[float]) -> str:
    """A line of the table."""
    published = speeds.published
    pairs = " | ".join(f"{a:g} | {b:.2f}" for a, b in zip(published, ours, strict=True))
    return (
        f"| {speeds.table} | {speeds.name} | {speeds.device} | {pairs} | "
        f"{published[-1] / published[0]:.2f} | {ours[-1] / ours[0]:.2f} |"
    )
