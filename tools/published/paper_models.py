"""GPipe's models (1811.06965), with the planner's predictions of the paper's runs."""

from __future__ import annotations

import dataclasses
import functools

from lingvo_pipe.planner.costs.device_needs import OversizedCandidate
from lingvo_pipe.planner.costs.flops_time_model import flops_time
from lingvo_pipe.planner.costs.model_costs import ModelCosts
from lingvo_pipe.planner.costs.traced_model import ModelTracer, costs_by_rows
from lingvo_pipe.planner.resources.candidate import Candidate
from lingvo_pipe.planner.resources.device_model import DeviceModel
from lingvo_pipe.planner.resources.known_devices import DEVICES
from lingvo_pipe.planner.search.candidate_evaluation import Evaluation, evaluate
from params.image.imagenet import AmoebaNetD
from params.lm.giant import GiantTransformer

_UNLIMITED = 2**60


class PaperModel:
    """A model of the paper, with GPipe's schedule, and recomputation unless M = 1."""

    def __init__(self, model: GiantTransformer | AmoebaNetD):
        params = model.Model()
        params.task.train.ema_decay = 0.0  # The paper has 12 bytes per parameter.
        data = model.Train()
        tracer = ModelTracer(params.task, data.Instantiate().element_spec)
        costs_of = costs_by_rows(tracer)
        # XLA compiled the paper's steps.
        self._costs = functools.cache(
            lambda rows: dataclasses.replace(costs_of(rows), in_place=True)
        )
        self._batch_size = data.batch_size

    def costs(self, num_micro_batches: int) -> ModelCosts:
        return self._costs(self._batch_size // num_micro_batches)

    def evenly(
        self, device: str, num_devices: int, num_micro_batches: int
    ) -> Evaluation:
        """Returns the evaluation of the most even stages, whether they fit or not."""
        unlimited = dataclasses.replace(DEVICES[device], memory=_UNLIMITED)
        evaluation = self._evaluate(unlimited, num_devices, num_micro_batches)
        assert isinstance(evaluation, Evaluation)
        return evaluation

    def fits(self, device: str, num_devices: int, num_micro_batches: int) -> bool:
        """Returns whether there are stages that fit into the devices' memory."""
        evaluation = self._evaluate(DEVICES[device], num_devices, num_micro_batches)
        return isinstance(evaluation, Evaluation)

    def sequential_seconds(self, device: str) -> float:
        """Returns a step's seconds if devices compute one after the other (M = 1).

        Each device runs its layers forward, again to recompute, and backward.
        """
        cells = flops_time(self.costs(1), DEVICES[device], "float32")
        return sum(2 * cell.forward + cell.backward for cell in cells)

    def _evaluate(
        self, device: DeviceModel, num_devices: int, num_micro_batches: int
    ) -> Evaluation | OversizedCandidate:
        recompute = "never" if num_micro_batches == 1 else "always"
        candidate = Candidate(1, num_devices, 1, num_micro_batches, "gpipe", recompute)
        costs = self.costs(num_micro_batches)
        seconds = flops_time(costs, device, "float32")
        return evaluate(candidate, costs, seconds, [device] * num_devices)


@functools.cache
def paper_model(num_layers: int, num_filters: int | None) -> PaperModel:
    """Returns AmoebaNet-D (L layers, D filters), or Transformer-L if D is None."""
    if num_filters is None:
        constants = {"NUM_LAYERS": num_layers}
        return PaperModel(type("Sized", (GiantTransformer,), constants)())
    constants = {"NUM_CELLS": num_layers, "NUM_FILTERS": num_filters}
    return PaperModel(type("Sized", (AmoebaNetD,), constants)())
