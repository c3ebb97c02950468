"""The step time and memory that the planner expects for a model's params."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Any

from lingvo_pipe.core.errors import UserValueError, raise_problems
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.devices.device_names import device_name
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from lingvo_pipe.pipeline.schedules.schedule import Kind
from lingvo_pipe.pipeline.splitting.cell_costs import CellSeconds
from lingvo_pipe.pipeline.stage_choice.measured_costs import measured_seconds
from lingvo_pipe.planner.costs.device_needs import DeviceNeeds
from lingvo_pipe.planner.costs.traced_model import ModelTracer, TracedModel
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
    """Times cells on the devices, and predicts a training step of the pipeline.

    `batch_spec` has the specs of a batch, `[B, ...]`, and `batch_size` is B.

    Raises:
        UserValueError: if the planner cannot model the params.
        tf.errors.OpError: if a cell does not run on synthetic inputs.
    """
    p = pipeline.params
    _check(pipeline, batch_size)
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
        recompute=_cells(p.recompute),
        offload="never" if p.offload is None else _cells(p.offload),
    )
    # The expected step has no update, so the rest of a step is not measured.
    slowdown = measured_slowdown(models.trace(num_rows), devices, seconds)
    contention = Contention(max(len(devices), 2), slowdown)
    device = dataclasses.replace(machine_device(devices), contention=contention)
    needs = DeviceNeeds(candidate, costs, pipeline.schedule)
    evaluation = evaluate_boundaries(
        needs, pipeline.boundaries, seconds, [device] * candidate.num_devices
    )
    return PlannedStep(evaluation.timeline, evaluation.bytes_by_device)


def measured_slowdown(
    traced: TracedModel, devices: Sequence[str], seconds: Sequence[CellSeconds]
) -> float:
    """Returns the factor by which cells slow down while all devices run them.

    `seconds` are the cells' times on one device alone. Devices slow each other down
    because they share memory, caches, the processor's clock rate, and the host that
    launches their operations. The factor is at least 1.
    """
    if len(devices) == 1:
        return 1.0
    measure = functools.partial(measured_seconds, traced.layers, traced.specs)
    with ThreadPoolExecutor(len(devices)) as pool:
        contended = median(map(_total, pool.map(measure, devices)))
    names = map(device_name, devices)
    here = [name for name in names if name.kind == "CPU" and name.worker is None]
    devices_per_core = len(here) / len(os.sched_getaffinity(0))
    return max(contended / _total(seconds), devices_per_core, 1.0)


def _total(cells: Sequence[CellSeconds]) -> float:
    return sum(cell.forward + cell.backward for cell in cells)


def _cells(value: Any) -> str | tuple[int, ...]:
    return tuple(value) if isinstance(value, (list, tuple)) else str(value)


def _check(pipeline: PipeliningLayer, batch_size: int) -> None:
    p = pipeline.params
    is_cut_evenly = p.micro_batch_size is None
    has_roles = p.recompute == "never" or isinstance(p.recompute, (list, tuple))
    if p.offload is None:  # A .csv file may offload all cells.
        is_modeled = Kind.OFFLOAD not in pipeline.schedule.kinds
    else:
        is_modeled = has_roles and not isinstance(p.offload, float)
    rules = {
        "offload": (
            is_modeled,
            "None, if no .csv file offloads; or, if recompute is never or a list, "
            "always or a list of cells",
        ),
        "micro_batch_size": (is_cut_evenly, "None"),
        "num_micro_batches": (
            not is_cut_evenly or batch_size % p.num_micro_batches == 0,
            f"a divisor of {batch_size} rows",
        ),
        "num_batch_shards": (
            p.num_batch_shards in (None, p.num_replicas),
            "as many as replicas",
        ),
    }
    problems = [
        UserValueError(path=f"task.pipeline.{name}", expected=expected, got=p.Get(name))
        for name, (is_right, expected) in rules.items()
        if not is_right
    ]
    raise_problems(problems, "The simulation from steps before predicts such steps.")
