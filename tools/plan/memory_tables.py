"""Table 1 of GPipe (1811.06965), memory, with the planner's predictions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from lingvo_pipe.core.tables import markdown_header, markdown_row
from lingvo_pipe.planner.resources.device_model import DEVICES
from tools.plan.paper_models import PaperModel, amoebanet, transformer

_GIB = 2**30
_FILTERS = 32  # Step of D.


class Size(NamedTuple):
    """A model of table 1, as published.

    Attributes:
        num_devices: K.
        num_micro_batches: M, which the paper does not give.
        num_layers: L.
        num_filters: D of an AmoebaNet.
        parameters: number of parameters in millions.
        model_gib: GiB of weights and optimizer, on all devices.
        activation_gib: GiB of everything else at its peak, on all devices.
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
        """The paper's kind of devices."""
        return "TPUv3" if self.num_filters is None else "TPUv2"

    @property
    def model(self) -> PaperModel:
        """The model of this size."""
        if self.num_filters is None:
            return transformer(self.num_layers)
        return amoebanet(self.num_layers, self.num_filters)


# The paper swaps the two memory rows of the Transformer on one device without GPipe:
# 282.2 million parameters of 12 bytes are 3.15 GiB.
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


class Prediction(NamedTuple):
    """The planner's prediction for a size; see `Size`."""

    parameters: float
    model_gib: float
    other_gib: float

    @property
    def total_gib(self) -> float:
        """GiB on all devices."""
        return self.model_gib + self.other_gib


def predict_memory(size: Size) -> Prediction:
    """Predicts the memory of a size with the most even stages in flops."""
    costs = size.model.costs(size.num_micro_batches)
    found = size.model.evenly(size.device, size.num_devices, size.num_micro_batches)
    model = costs.memory.weights(0, costs.num_cells) + costs.slots(0, costs.num_cells)
    everything = sum(found.bytes_by_device)
    return Prediction(
        sum(costs.num_parameters) / 1e6, model / _GIB, (everything - model) / _GIB
    )


def memory_table(sizes: Sequence[Size]) -> Iterator[str]:
    """Yields lines of a table of published and predicted memory, on all devices."""
    pairs = ("parameters, M", "weights, GiB", "the rest, GiB", "total, GiB")
    predicted = [text for name in pairs for text in (name, "predicted")]
    yield from markdown_header(["L", "D", "K", "M", *predicted, ""])
    yield from map(memory_row, sizes)


def memory_row(size: Size) -> str:
    """Returns a line of the table."""
    ours = predict_memory(size)
    total = size.model_gib + size.activation_gib
    pairs = (
        (size.model_gib, ours.model_gib),
        (size.activation_gib, ours.other_gib),
        (total, ours.total_gib),
    )
    return markdown_row(
        size.num_layers,
        size.num_filters or "-",
        size.num_devices,
        size.num_micro_batches,
        f"{size.parameters:,.1f}",
        f"{ours.parameters:,.1f}",
        *(f"{gib:.2f}" for pair in pairs for gib in pair),
        f"{ours.total_gib / total - 1:+.1%}",
    )


def largest_layers_table() -> Iterator[str]:
    """Yields lines of a table of the most layers that fit, in steps of K."""
    usable = DEVICES["TPUv3"].usable_bytes
    more_text = f"more, of {_gib(usable)} GiB"
    yield from markdown_header(["K", "published L", "predicted L", "needs", more_text])
    for size in TRANSFORMERS[1:]:
        step, layers = size.num_devices, size.num_layers
        while _needs_with_layers(size, layers) > usable:
            layers -= step
        while _needs_with_layers(size, layers + step) <= usable:
            layers += step
        need, more = (_needs_with_layers(size, x) for x in (layers, layers + step))
        yield markdown_row(step, size.num_layers, layers, _gib(need), _gib(more))


def largest_filters_table() -> Iterator[str]:
    """Yields lines of a table of the most filters, with stages chosen for memory."""
    pairs = ("published", "parameters, M", "predicted", "parameters, M")
    yield from markdown_header(["K", "M", *pairs])
    for size in AMOEBANETS[1:]:
        assert size.num_filters is not None
        filters, layers = size.num_filters, size.num_layers
        while not _fits_with_filters(size, filters):
            filters -= _FILTERS
        while _fits_with_filters(size, filters + _FILTERS):
            filters += _FILTERS
        costs = amoebanet(layers, filters).costs(size.num_micro_batches)
        yield markdown_row(
            size.num_devices,
            size.num_micro_batches,
            f"({layers}, {size.num_filters})",
            f"{size.parameters:,.0f}",
            f"({layers}, {filters})",
            f"{sum(costs.num_parameters) / 1e6:,.1f}",
        )


def _needs_with_layers(size: Size, num_layers: int) -> int:
    """Returns the bytes of the largest device, with the most even stages."""
    found = transformer(num_layers).evenly(
        size.device, size.num_devices, size.num_micro_batches
    )
    return max(found.bytes_by_device)


def _fits_with_filters(size: Size, num_filters: int) -> bool:
    model = amoebanet(size.num_layers, num_filters)
    return model.fits(size.device, size.num_devices, size.num_micro_batches)


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / _GIB:.2f}"
