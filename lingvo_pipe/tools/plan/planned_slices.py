"""A search for slices of layers, for a model whose whole layers do not fit."""

from __future__ import annotations

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.fewest_slices import fewest_slices
from lingvo_pipe.planner.costs.device_needs import min_bytes_by_cell
from lingvo_pipe.planner.costs.model_costs import Models
from lingvo_pipe.planner.costs.traced_model import ModelTracer, flops_models
from lingvo_pipe.planner.resources.resources import (
    Constraints,
    Resources,
    allowed_candidates,
)
from lingvo_pipe.planner.search.fitting_plan import NothingFits, fits
from lingvo_pipe.training.checkpoint.whole_weights import problems_with_pieces

# Slices per device. With more, most of a step would be messages.
_MAX_SLICES = 4
_Traced = tuple[ModelTracer, Models]


def find_slices(
    task_params: InstantiableParams,
    batch_spec: NestedMap,
    whole: _Traced,
    resources: Resources,
    constraints: Constraints,
) -> tuple[dict[str, int], _Traced]:
    """Finds the fewest slices of layers with which a model fits on the devices.

    `whole` is the tracer and the costs of the model without slices. Returns the value
    for the pipeline's param `slices`, and the tracer and the costs with slices.

    Raises:
        NothingFits: if slices do not help. The error gives the reason.
        UserValueError: if the constraints contradict each other.
    """
    if problems := problems_with_pieces(task_params.train):
        raise NothingFits(
            "Layers in slices might fit, but slices train pieces of weights: "
            + " ".join(map(str, problems))
        )
    tracer, models = whole
    allowed = allowed_candidates(resources, constraints, tracer.num_cells)
    most_micro_batches = max(candidate.num_micro_batches for candidate in allowed)
    num_rows = resources.batch_size // most_micro_batches
    costs, usable = models(num_rows)[0], resources.usable_bytes
    weights = costs.memory.held(0, costs.num_cells) + sum(costs.slot_bytes)
    if weights > resources.total_bytes:
        raise NothingFits(
            "Cutting layers into slices does not help: weights and optimizer slots "
            f"alone need {weights:,} bytes, and {resources.num_devices} devices have "
            f"{resources.total_bytes:,}."
        )

    def attempt(slices: dict[str, int]) -> tuple[_Traced | None, float]:
        p = task_params.Copy()
        p.pipeline.slices = slices
        try:
            sliced = ModelTracer(p, batch_spec)
        except UserValueError:  # Weights are tied across dimensions.
            return None, 0.0
        models = flops_models(sliced, resources.devices)
        if fits(models, resources, constraints):
            return (sliced, models), usable
        needed = max(min_bytes_by_cell(models(num_rows)[0]))
        return None, needed if needed > usable else 0.0

    cell_bytes, most = min_bytes_by_cell(costs), _MAX_SLICES * resources.num_devices
    result = fewest_slices(task_params.pipeline, cell_bytes, usable, most, attempt)
    if result is None:
        raise NothingFits(
            f"Nor does it fit with up to {most:,} slices, {_MAX_SLICES} per device."
        )
    return result
