"""GPipe's tables 1, 2 and 3 (1811.06965), beside what the planner predicts.

    tools/bazel run //tools/plan:published

takes some minutes, and prints tables in Markdown.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from lingvo_pipe.quiet_startup import quiet_startup

with quiet_startup():
    from lingvo_pipe.planner.candidate import Candidate
    from lingvo_pipe.planner.cell_seconds import counted_seconds
    from lingvo_pipe.planner.device_model import DEVICES
    from lingvo_pipe.planner.evaluation import Evaluated, evaluate
    from lingvo_pipe.planner.model_costs import ModelCosts
    from lingvo_pipe.planner.models_by_rows import counted_models
    from lingvo_pipe.planner.search import Models
    from lingvo_pipe.planner.traced_model import ModelTracer
    from params.image.imagenet import AmoebaNetD
    from params.lm.giant import GiantTransformer

GIB = 2**30
_UNLIMITED = 2**60


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
    models, batch_size = _models_of(size)
    costs, _ = models(batch_size // size.num_micro_batches)
    evaluated = _evaluated(size, models, batch_size, "TPUv3")
    model = costs.memory.weights(0, costs.num_cells) + costs.slots(0, costs.num_cells)
    everything = sum(evaluated.bytes_by_device)
    return Predicted(
        sum(costs.num_parameters) / 1e6, model / GIB, (everything - model) / GIB
    )


def throughputs(
    model: GiantTransformer | AmoebaNetD, device: str, num_micro_batches: int = 32
) -> list[float]:
    """On 2, 4 and 8 devices: by that of two that take turns with the whole mini-batch.

    These run forward, again, and backward, one after the other.
    """
    models, batch_size = _models(model)
    cells = counted_seconds(models(batch_size)[0], DEVICES[device], "float32")
    in_turn = sum(2 * cell.forward + cell.backward for cell in cells)
    sizes = [
        Size(num_devices, num_micro_batches, 0, None, 0, 0, 0)
        for num_devices in (2, 4, 8)
    ]
    return [
        in_turn / _evaluated(size, models, batch_size, device).step_seconds
        for size in sizes
    ]


def transformer(num_layers: int) -> GiantTransformer:
    """A Transformer-L."""
    sized = type("Sized", (GiantTransformer,), {"NUM_LAYERS": num_layers})
    return sized()


def amoebanet(num_layers: int, num_filters: int) -> AmoebaNetD:
    """An AmoebaNet-D (L, D)."""
    constants = {"NUM_CELLS": num_layers, "NUM_FILTERS": num_filters}
    return type("Sized", (AmoebaNetD,), constants)()


def _models_of(size: Size) -> tuple[Models, int]:
    if size.num_filters is None:
        return _models(transformer(size.num_layers))
    return _models(amoebanet(size.num_layers, size.num_filters))


def _models(model: GiantTransformer | AmoebaNetD) -> tuple[Models, int]:
    """The model's costs, and the rows of its mini-batch."""
    params = model.Model()
    params.task.train.ema_decay = 0.0  # Published are 12 bytes a parameter.
    data = model.Train()
    tracer = ModelTracer(params.task, data.Instantiate().element_spec)
    return counted_models(tracer, DEVICES["TPUv3"], "float32"), data.batch_size


def _evaluated(size: Size, models: Models, batch_size: int, device: str) -> Evaluated:
    costs: ModelCosts
    costs, _ = models(batch_size // size.num_micro_batches)
    unlimited = dataclasses.replace(DEVICES[device], memory=_UNLIMITED)
    candidate = Candidate(
        num_replicas=1,
        num_devices=size.num_devices,
        stages_per_device=1,
        num_micro_batches=size.num_micro_batches,
        schedule="gpipe",
        recompute="never" if size.num_micro_batches == 1 else "always",
    )
    seconds = counted_seconds(costs, unlimited, "float32")
    found = evaluate(candidate, costs, seconds, unlimited)
    assert isinstance(found, Evaluated)  # Memory has no limit.
    return found


def _memory_rows(sizes: Sequence[Size]) -> Iterator[str]:
    yield (
        "| L | D | K | M | parameters, M | predicted | weights and slots, GiB | "
        "predicted | the rest, GiB | predicted | total, GiB | predicted | difference |"
    )
    yield "|" + " - |" * 13
    for size in sizes:
        ours = predicted(size)
        total = size.model_gib + size.activation_gib
        yield (
            f"| {size.num_layers} | {size.num_filters or ''} | {size.num_devices} | "
            f"{size.num_micro_batches} | {size.parameters:,.1f} | "
            f"{ours.parameters:,.1f} | {size.model_gib:.2f} | {ours.model_gib:.2f} | "
            f"{size.activation_gib:.2f} | {ours.other_gib:.2f} | {total:.2f} | "
            f"{ours.total_gib:.2f} | {ours.total_gib / total - 1:+.1%} |"
        )


_THROUGHPUTS: list[
    tuple[str, str, GiantTransformer | AmoebaNetD, str, tuple[float, ...]]
] = [
    ("2", "Transformer-48", transformer(48), "TPUv3", (1.8, 3.4, 6.3)),
    ("2", "AmoebaNet-D (18, 256)", amoebanet(18, 256), "TPUv2", (1.21, 1.84, 3.48)),
    ("3", "Transformer-24", transformer(24), "P100", (1.0, 1.8, 3.3)),
    ("3", "AmoebaNet-D (18, 128)", amoebanet(18, 128), "P100", (1.0, 1.7, 2.7)),
]


def _throughput_rows() -> Iterator[str]:
    yield (
        "| table | model | devices | K=2 | predicted | K=4 | predicted | K=8 | "
        "predicted | K=8 / K=2 | predicted |"
    )
    yield "|" + " - |" * 11
    for table, name, model, device, published in _THROUGHPUTS:
        ours = throughputs(model, device)
        if table == "3":  # Which takes K=2 as 1.
            ours = [each / ours[0] for each in ours]
        pairs = " | ".join(
            f"{a:g} | {b:.2f}" for a, b in zip(published, ours, strict=True)
        )
        yield (
            f"| {table} | {name} | {device} | {pairs} | "
            f"{published[-1] / published[0]:.2f} | {ours[-1] / ours[0]:.2f} |"
        )


def main() -> int:
    """Prints the tables."""
    for sizes in (TRANSFORMERS, AMOEBANETS):
        for line in _memory_rows(sizes):
            print(line, flush=True)
        print()
    for line in _throughput_rows():
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
