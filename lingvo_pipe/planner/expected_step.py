"""What the planner expects of a step of a model as its params say it is run."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from lingvo_pipe.planner.calibration import calibrated_device
from lingvo_pipe.planner.candidate import Candidate
from lingvo_pipe.planner.company import Company
from lingvo_pipe.planner.device_needs import DeviceNeeds
from lingvo_pipe.planner.evaluation import evaluate_ends
from lingvo_pipe.planner.measured_company import measured_slowdown
from lingvo_pipe.planner.measured_models import MeasuredModels
from lingvo_pipe.planner.traced_model import ModelTracer
from lingvo_pipe.training.planned_step import PlannedStep


def expected_step(
    task_params: InstantiableParams,
    pipeline: PipeliningLayer,
    batch_spec: NestedMap,
    batch_size: int,
    devices: Sequence[str],
) -> PlannedStep:
    """Times the model's cells, each alone, and simulates a step of it.

    Args:
        task_params: of the model.
        pipeline: the model's.
        batch_spec: of a batch, `[B, ...]`.
        batch_size: B.
        devices: full names, as from `initialize_devices`.

    Raises:
        ValueError: if the params ask for what the planner knows nothing of.
        tf.errors.OpError: if a cell can't be run on made-up inputs.
    """
    p = pipeline.params
    for unknown, is_asked_for in {
        "cells that are computed again by their numbers": _is_list(p.recompute),
        "micro-batches of different sizes": p.micro_batch_size is not None
        or batch_size % p.num_micro_batches > 0,
        "more parts than replicas": p.num_parts not in (None, p.num_replicas),
    }.items():
        if is_asked_for:
            raise ValueError(f"the planner knows nothing of {unknown}")
    tracer = ModelTracer(task_params, batch_spec, devices[0])
    models = MeasuredModels(tracer, devices[0])
    num_rows = batch_size // p.num_micro_batches
    models.measure(num_rows)
    costs, seconds = models(num_rows)
    candidate = Candidate(
        p.num_replicas,
        len(devices) // p.num_replicas,
        p.stages_per_device,
        p.num_micro_batches,
        p.schedule,
        str(p.recompute),
    )
    # The update is not planned, so what it takes need not be measured.
    slowdown = measured_slowdown(models.trace(num_rows), devices, seconds)
    company = Company(max(len(devices), 2), slowdown)
    device = dataclasses.replace(calibrated_device(devices), company=company)
    schedule, ends = pipeline.schedule, pipeline.ends
    needs = DeviceNeeds(candidate, costs, schedule)
    found = evaluate_ends(candidate, schedule, needs, ends, costs, seconds, device)
    return PlannedStep(found.timeline, found.bytes_by_device)


def _is_list(recompute: Any) -> bool:
    return isinstance(recompute, (list, tuple))
