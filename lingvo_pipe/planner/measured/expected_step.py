"""The step time and memory that the planner expects for a model's params."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.hyperparams import InstantiableParams, Params
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from lingvo_pipe.pipeline.schedules.recompute import POLICIES
from lingvo_pipe.planner.costs.device_needs import DeviceNeeds
from lingvo_pipe.planner.costs.traced_model import ModelTracer
from lingvo_pipe.planner.measured.measured_contention import measured_slowdown
from lingvo_pipe.planner.measured.measured_models import MeasuredModels
from lingvo_pipe.planner.measured.stored_calibration import machine_device
from lingvo_pipe.planner.resources.candidate import Candidate
from lingvo_pipe.planner.resources.device_model import Contention
from lingvo_pipe.planner.search.candidate_evaluation import evaluate_boundaries
from lingvo_pipe.training.profiling.step_profile import PlannedStep


def expected_step(
    task_params: InstantiableParams,
    pipeline: PipeliningLayer,
    batch_spec: NestedMap,
    batch_size: int,
    devices: Sequence[str],
) -> PlannedStep:
    """Times cells without contention, and simulates a step of a batch, `[B, ...]`.

    Raises:
        UserValueError: if the planner cannot model the params.
        tf.errors.OpError: if a cell does not run on synthetic inputs.
    """
    p = pipeline.params
    _check(p, batch_size)
    num_rows = batch_size // p.num_micro_batches
    tracer = ModelTracer(task_params, batch_spec, devices[0])
    models = MeasuredModels(tracer, devices[0])
    models.measure(num_rows)
    costs, seconds = models(num_rows)
    candidate = Candidate(
        num_replicas=p.num_replicas,
        num_devices=len(devices) // p.num_replicas,
        stages_per_device=p.stages_per_device,
        num_micro_batches=p.num_micro_batches,
        schedule=p.schedule,
        recompute=str(p.recompute),
    )
    # The expected step has no update, so the rest of a step is not measured.
    slowdown = measured_slowdown(models.trace(num_rows), devices, seconds)
    contention = Contention(max(len(devices), 2), slowdown)
    device = dataclasses.replace(machine_device(devices), contention=contention)
    needs = DeviceNeeds(candidate, costs, pipeline.schedule)
    evaluation = evaluate_boundaries(needs, pipeline.boundaries, seconds, device)
    return PlannedStep(evaluation.timeline, evaluation.bytes_by_device)


def _check(p: Params, batch_size: int) -> None:
    checks = [
        (
            "recompute",
            f"one of {', '.join(POLICIES)}",
            isinstance(p.recompute, (list, tuple)),
        ),
        ("micro_batch_size", "None", p.micro_batch_size is not None),
        (
            "num_micro_batches",
            f"a divisor of {batch_size} rows",
            p.micro_batch_size is None and batch_size % p.num_micro_batches,
        ),
        (
            "num_batch_shards",
            "as many as replicas",
            p.num_batch_shards not in (None, p.num_replicas),
        ),
    ]
    problems = [
        f"task.pipeline.{name}: expected {expected}, got {p.Get(name)!r}"
        for name, expected, is_wrong in checks
        if is_wrong
    ]
    if problems:
        raise UserValueError(
            f"It predicts no step with these. {'; '.join(problems)}. The simulation "
            "from steps before does."
        )
