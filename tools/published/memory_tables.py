"""Table 1 of GPipe (1811.06965), on memory, with the planner's predictions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from lingvo_pipe.core.tables import markdown_header, markdown_row
from lingvo_pipe.planner.resources.known_devices import DEVICES
from tools.published.paper_models import PaperModel, paper_model

_GIB = 2**30
_FILTERS = 32  # D is searched in these steps.


class Size(NamedTuple):
    """A model in table 1, with published numbers. GiB are sums over all devices."""

    num_devices: int  # K
    num_micro_batches: int  # M, which the paper does not give
    num_layers: int  # L
    num_filters: int | None  # D of an AmoebaNet
    parameters: float  # millions
    model_gib: float  # of weights and optimizer
    activation_gib: float  # of everything else at its peak

    @property
    def total_gib(self) -> float:
        return self.model_gib + self.activation_gib

    @property
    def model(self) -> PaperModel:
        return paper_model(self.num_layers, self.num_filters)

    @property
    def settings(self) -> tuple[str, int, int]:
        """The paper's kind of devices for this model, K, and M."""
        device = "TPUv3" if self.num_filters is None else "TPUv2"
        return device, self.num_devices, self.num_micro_batches

    def bytes_by_device(self) -> Sequence[int]:
        """Returns each device's predicted bytes, with the most even flops by stage."""
        return self.model.evenly(*self.settings).bytes_by_device


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


def predict_memory(size: Size) -> Size:
    """Returns `size` with predicted numbers, for stages with the most even flops."""
    costs = size.model.costs(size.num_micro_batches)
    model = costs.memory.weights(0, costs.num_cells) + sum(costs.slot_bytes)
    return size._replace(
        parameters=sum(costs.num_parameters) / 1e6,
        model_gib=model / _GIB,
        activation_gib=(sum(size.bytes_by_device()) - model) / _GIB,
    )


def memory_table(sizes: Sequence[Size]) -> Iterator[str]:
    """Yields lines of a table of all devices' published and predicted memory."""
    pairs = ("parameters, M", "weights, GiB", "the rest, GiB", "total, GiB")
    predicted = [text for name in pairs for text in (name, "predicted")]
    yield from markdown_header(["L", "D", "K", "M", *predicted, ""])
    yield from map(memory_row, sizes)


def memory_row(size: Size) -> str:
    """Returns the table's line for a model, with published and predicted numbers."""
    prediction = predict_memory(size)
    sizes = size, prediction
    return markdown_row(
        *(size.num_layers, size.num_filters or "-"),
        *(size.num_devices, size.num_micro_batches),
        *(f"{x.parameters:,.1f}" for x in sizes),
        *(f"{x.model_gib:.2f}" for x in sizes),
        *(f"{x.activation_gib:.2f}" for x in sizes),
        *(f"{x.total_gib:.2f}" for x in sizes),
        f"{prediction.total_gib / size.total_gib - 1:+.1%}",
    )


def largest_layers_table() -> Iterator[str]:
    """Yields lines of a table of the most layers that fit, as multiples of K."""
    usable = DEVICES["TPUv3"].usable_bytes
    more_text = f"more, of {_gib(usable)} GiB"
    yield from markdown_header(["K", "published L", "predicted L", "needs", more_text])
    for size in TRANSFORMERS[1:]:
        step = size.num_devices
        layers = _largest(
            size, "num_layers", step, lambda it: max(it.bytes_by_device()) <= usable
        )
        sizes = (size._replace(num_layers=x) for x in (layers, layers + step))
        needs = (_gib(max(candidate.bytes_by_device())) for candidate in sizes)
        yield markdown_row(step, size.num_layers, layers, *needs)


def largest_filters_table() -> Iterator[str]:
    """Yields lines of a table of the most filters with which a model fits."""
    pairs = ("published", "parameters, M", "predicted", "parameters, M")
    yield from markdown_header(["K", "M", *pairs])
    for size in AMOEBANETS[1:]:
        filters = _largest(
            size, "num_filters", _FILTERS, lambda it: it.model.fits(*it.settings)
        )
        costs = paper_model(size.num_layers, filters).costs(size.num_micro_batches)
        yield markdown_row(
            size.num_devices,
            size.num_micro_batches,
            f"({size.num_layers}, {size.num_filters})",
            f"{size.parameters:,.0f}",
            f"({size.num_layers}, {filters})",
            f"{sum(costs.num_parameters) / 1e6:,.1f}",
        )


def _largest(size: Size, field: str, step: int, fits: Callable[[Size], bool]) -> int:
    value = getattr(size, field)
    while not fits(size._replace(**{field: value})):
        value -= step
    while fits(size._replace(**{field: value + step})):
        value += step
    return value


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / _GIB:.2f}"
