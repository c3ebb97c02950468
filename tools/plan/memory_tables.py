"""Table 1 of GPipe (1811.06965) beside what the planner predicts: memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from lingvo_pipe.planner.device_model import DEVICES
from tools.plan.paper_models import PaperModel, amoebanet, transformer

_GIB = 2**30
_FILTERS = 32  # Steps of D.


class Size(NamedTuple):
    """A model of table 1, as published.

    Attributes:
        num_devices: K.
        num_micro_batches: M; the paper does not say it.
        num_layers: L.
        num_filters: D, of an AmoebaNet.
        parameters: in millions.
        model_gib: what weights and the optimizer take, of all devices.
        activation_gib: what else they take at their worst moments.
    """

    num_devices: int
    num_micro_batches: int
    num_layers: int
    num_filters: int | None
    parameters: float
    model_gib: float
    activation_gib: float

    @property
    def device(self) -> str:
        """The kind of devices that the paper had for it."""
        return "TPUv3" if self.num_filters is None else "TPUv2"

    @property
    def model(self) -> PaperModel:
        """Of this size."""
        if self.num_filters is None:
            return transformer(self.num_layers)
        return amoebanet(self.num_layers, self.num_filters)


# The two rows of the Transformer on one device without GPipe stand the wrong way round
# in the paper: 282.2 million parameters of 12 bytes are 3.15 GiB.
TRANSFORMERS = [
    Size(1, 1, 3, None, 282.2, 3.15, 11.7),
    Size(1, 32, 13, None, 785.8, 8.8, 6.4),
    Size(8, 32, 103, None, 5_300, 59.5, 50.9),
    Size(32, 32, 415, None, 21_000, 235.1, 199.9),
    Size(128, 32, 1663, None, 83_900, 937.9, 796.1),
]
AMOEBANETS = [
    Size(1, 1, 18, 208, 82, 1.05, 6.26),
    Size(1, 32, 18, 416, 318, 3.8, 3.46),
    Size(2, 16, 18, 544, 542, 6.45, 8.11),
    Size(4, 16, 36, 544, 1_050, 12.53, 15.21),
    Size(8, 16, 72, 512, 1_800, 24.62, 26.24),
]


class Predicted(NamedTuple):
    """What the planner says of a size: see `Size`."""

    parameters: float
    model_gib: float
    other_gib: float

    @property
    def total_gib(self) -> float:
        """Of all devices."""
        return self.model_gib + self.other_gib


def predicted(size: Size) -> Predicted:
    """The memory of a size, its stages as even in flops as can be."""
    costs = size.model.costs(size.num_micro_batches)
    found = size.model.evenly(size.device, size.num_devices, size.num_micro_batches)
    model = costs.memory.weights(0, costs.num_cells) + costs.slots(0, costs.num_cells)
    everything = sum(found.bytes_by_device)
    return Predicted(
        sum(costs.num_parameters) / 1e6, model / _GIB, (everything - model) / _GIB
    )


def memory_table(sizes: Sequence[Size]) -> Iterator[str]:
    """Lines of a table: published, and predicted, of all devices together."""
    yield (
        "| L | D | K | M | parameters, M | predicted | weights, GiB | predicted | "
        "the rest, GiB | predicted | total, GiB | predicted |  |"
    )
    yield "|" + "---|" * 13
    yield from map(memory_row, sizes)


def memory_row(size: Size) -> str:
    """A line of the table."""
    ours = predicted(size)
    total = size.model_gib + size.activation_gib
    return (
        f"| {size.num_layers} | {size.num_filters or '-'} | {size.num_devices} | "
        f"{size.num_micro_batches} | {size.parameters:,.1f} | "
        f"{ours.parameters:,.1f} | {size.model_gib:.2f} | {ours.model_gib:.2f} | "
        f"{size.activation_gib:.2f} | {ours.other_gib:.2f} | {total:.2f} | "
        f"{ours.total_gib:.2f} | {ours.total_gib / total - 1:+.1%} |"
    )


def largest_layers_table() -> Iterator[str]:
    """Lines of a table: the most layers, as many more or less on each device."""
    usable = DEVICES["TPUv3"].usable
    yield f"| K | published L | predicted L | needs | more, of {_gib(usable)} GiB |"
    yield "|" + "---|" * 5
    for size in TRANSFORMERS[1:]:
        step, layers = size.num_devices, size.num_layers
        while _layers_need(size, layers) > usable:
            layers -= step
        while _layers_need(size, layers + step) <= usable:
            layers += step
        need, more = (_layers_need(size, x) for x in (layers, layers + step))
        yield (
            f"| {step} | {size.num_layers} | {layers} | {_gib(need)} | {_gib(more)} |"
        )


def largest_filters_table() -> Iterator[str]:
    """Lines of a table: the most filters, by 32, with stages made for the memory."""
    yield "| K | M | published | parameters, M | predicted | parameters, M |"
    yield "|" + "---|" * 6
    for size in AMOEBANETS[1:]:
        assert size.num_filters is not None
        filters, layers = size.num_filters, size.num_layers
        while not _filters_fit(size, filters):
            filters -= _FILTERS
        while _filters_fit(size, filters + _FILTERS):
            filters += _FILTERS
        costs = amoebanet(layers, filters).costs(size.num_micro_batches)
        yield (
            f"| {size.num_devices} | {size.num_micro_batches} | "
            f"({layers}, {size.num_filters}) | {size.parameters:,.0f} | "
            f"({layers}, {filters}) | {sum(costs.num_parameters) / 1e6:,.1f} |"
        )


def _layers_need(size: Size, num_layers: int) -> int:
    """Of the device that needs most, stages as even as can be."""
    found = transformer(num_layers).evenly(
        size.device, size.num_devices, size.num_micro_batches
    )
    return max(found.bytes_by_device)


def _filters_fit(size: Size, num_filters: int) -> bool:
    model = amoebanet(size.num_layers, num_filters)
    return model.fits(size.device, size.num_devices, size.num_micro_batches)


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / _GIB:.2f}"
