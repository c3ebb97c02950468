"""GPipe's models (1811.06965), as the paper ran them on so many devices."""

from __future__ import annotations

import dataclasses
import functools

from lingvo_pipe.planner.candidate import Candidate
from lingvo_pipe.planner.counted_seconds import counted_seconds
from lingvo_pipe.planner.device_model import DEVICES
from lingvo_pipe.planner.evaluation import Evaluated, evaluate
from lingvo_pipe.planner.model_costs import ModelCosts
from lingvo_pipe.planner.models_by_rows import costs_by_rows
from lingvo_pipe.planner.too_large import TooLarge
from lingvo_pipe.planner.traced_model import ModelTracer
from params.image.imagenet import AmoebaNetD
from params.lm.giant import GiantTransformer

_UNLIMITED = 2**60


class PaperModel:
    """A model of the paper's, by GPipe's schedule; all is recomputed, but for M = 1.

    Args:
        model: as it is registered, or another size of it.
    """

    def __init__(self, model: GiantTransformer | AmoebaNetD):
        params = model.Model()
        params.task.train.ema_decay = 0.0  # Published are 12 bytes a parameter.
        data = model.Train()
        tracer = ModelTracer(params.task, data.Instantiate().element_spec)
        self._costs = functools.cache(costs_by_rows(tracer))
        self._batch_size = data.batch_size

    def costs(self, num_micro_batches: int) -> ModelCosts:
        """Of a micro-batch."""
        return self._costs(self._batch_size // num_micro_batches)

    def evenly(
        self, device: str, num_devices: int, num_micro_batches: int
    ) -> Evaluated:
        """With stages as even in flops as can be, whatever they need.

        Args:
            device: the kind.
            num_devices: K.
            num_micro_batches: M; 1: nothing is recomputed.
        """
        found = self._evaluated(device, _UNLIMITED, num_devices, num_micro_batches)
        assert isinstance(found, Evaluated)  # Memory has no limit.
        return found

    def fits(self, device: str, num_devices: int, num_micro_batches: int) -> bool:
        """Whether there are stages that a device's memory holds; see `evenly`."""
        memory = DEVICES[device].memory
        found = self._evaluated(device, memory, num_devices, num_micro_batches)
        return isinstance(found, Evaluated)

    def seconds_in_turn(self, device: str) -> float:
        """Of devices that take turns with the whole mini-batch, M = 1.

        They run forward, again, and backward, one after the other.
        """
        cells = counted_seconds(self.costs(1), DEVICES[device], "float32")
        return sum(2 * cell.forward + cell.backward for cell in cells)

    def _evaluated(
        self, device: str, memory: int, num_devices: int, num_micro_batches: int
    ) -> Evaluated | TooLarge:
        limited = dataclasses.replace(DEVICES[device], memory=memory)
        costs = self.costs(num_micro_batches)
        candidate = Candidate(
            num_replicas=1,
            num_devices=num_devices,
            stages_per_device=1,
            num_micro_batches=num_micro_batches,
            schedule="gpipe",
            recompute="never" if num_micro_batches == 1 else "always",
        )
        seconds = counted_seconds(costs, limited, "float32")
        return evaluate(candidate, costs, seconds, limited)


@functools.cache
def transformer(num_layers: int) -> PaperModel:
    """A Transformer-L."""
    sized = type("Sized", (GiantTransformer,), {"NUM_LAYERS": num_layers})
    return PaperModel(sized())


@functools.cache
def amoebanet(num_layers: int, num_filters: int) -> PaperModel:
    """An AmoebaNet-D (L, D)."""
    constants = {"NUM_CELLS": num_layers, "NUM_FILTERS": num_filters}
    return PaperModel(type("Sized", (AmoebaNetD,), constants)())
