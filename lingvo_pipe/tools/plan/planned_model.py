"""A model to plan, its devices, and the largest registered model of a family."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

import model_registry
from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.hyperparams import InstantiableParams, Params
from lingvo_pipe.hyperparams.old_names import current_path
from lingvo_pipe.hyperparams.text_entries import (
    entries_by_path,
    is_below,
    parse_entry,
    split_entries,
)
from lingvo_pipe.pipeline.devices.stage_devices import initialize_devices
from lingvo_pipe.pipeline.pipelining_rules import PLANNED, check_each_param
from lingvo_pipe.pipeline.splitting.partitioning import is_auto
from lingvo_pipe.planner.costs.traced_model import ModelTracer, flops_models
from lingvo_pipe.planner.measured.measured_models import plan_measured
from lingvo_pipe.planner.measured.stored_calibration import machine_device
from lingvo_pipe.planner.resources.device_model import DeviceModel
from lingvo_pipe.planner.resources.hosts import Hosts
from lingvo_pipe.planner.resources.known_devices import Requested
from lingvo_pipe.planner.resources.resources import Constraints, Resources
from lingvo_pipe.planner.search.candidate_evaluation import Evaluation
from lingvo_pipe.planner.search.fastest_candidates import SearchResult
from lingvo_pipe.planner.search.fitting_plan import NothingFits, fits, plan
from lingvo_pipe.planner.search.plan_report import run_flags
from lingvo_pipe.tools.plan.keras_plan import SpecInput, pipelined_model_call
from lingvo_pipe.tools.plan.planned_slices import find_slices

# Params of a pipeline that must be None for a plan, and all params that a plan sets.
_NONE_IN_PLANS = (
    *("micro_batch_size", "num_batch_shards", "offload", "cell_costs", "devices"),
    *("input_shapes", "input_dtypes"),
)
_PLANNED = (
    *("splits", "stages_per_device", "num_replicas", "num_micro_batches"),
    *("schedule", "recompute", *_NONE_IN_PLANS),
)
_PIPELINE_PARAM = re.compile(r"task\.pipeline\.(\w+)")
_BATCH_SIZE = "input.batch_size"

_Plan = TypeVar("_Plan")


@dataclasses.dataclass(frozen=True)
class Devices:
    """Devices in order. Devices of this machine also have names."""

    models: tuple[DeviceModel, ...]  # Of each device.
    names: Sequence[str] = ()


def find_devices(requested: Requested) -> Devices:
    """Returns the requested devices, and measures them if they are this machine's.

    Raises:
        ValueError: if this machine has fewer devices than requested.
    """
    if not isinstance(requested, int):
        return Devices(requested)
    names = initialize_devices(requested)
    return Devices((machine_device(names),) * requested, names)


class PlannedModel:
    """A model with the user's changes and batch size.

    Args:
        name: the model's registered name, or another one if there are `params`.
        override: params to change, separated by `;`.
        batch_size: rows of a mini-batch; if None, the model's own.
        changes: more params to change, as values by path.
        params: params with `task` and `input`, of a model that is not registered.

    Raises:
        ValueError: if a change is invalid, or changes a param that the planner sets.
        LookupError: if there is no such model.
    """

    def __init__(
        self,
        name: str,
        override: str = "",
        batch_size: int | None = None,
        changes: Mapping[str, Any] = types.MappingProxyType({}),
        params: Params | None = None,
    ):
        if params is None:
            params = model_registry.GetParams(name, "Train")
        params.FromText(override, separator=";").Set(**changes)
        self._entries = list(map(parse_entry, split_entries(override, ";")))
        changed = list(map(current_path, changes))
        paths = [*(entry.path for entry in self._entries), *changed]
        _check_changes(paths, batch_size, "--model_params_override" * bool(override))
        entries = entries_by_path(params.ToText()) if changes else {}
        self._entries += [x for path, x in entries.items() if is_below(path, changed)]
        self.name, self._task = name, params.task
        self._own_batch_size = batch_size
        self._own_slices = params.task.pipeline.slices
        if is_auto(self._own_slices):  # `plan` finds slices if they are needed.
            self._task.pipeline.slices = None
        self._slices = self._task.pipeline.slices
        pipeline = self._task.pipeline
        self._not_none = [x for x in _NONE_IN_PLANS if pipeline.Get(x) is not None]
        _set_planned(self._task.pipeline)
        self._input = params.input.Instantiate()
        self._batch_spec = self._input.element_spec
        self._batch_size = batch_size or params.input.batch_size

    @property
    def num_parameters(self) -> int:
        """Number of trained parameters."""
        return self._tracer.num_parameters

    def plan(self, devices: Devices, constraints: Constraints) -> SearchResult:
        """Finds the fastest ways to run the model.

        If no way fits into memory, cuts layers into slices.

        Raises:
            ValueError: if constraints contradict each other, or nothing fits.
        """
        resources, tracer = self.resources(devices), self._tracer
        constraints = self._with_independent_stages(constraints)
        hosts = resources.limited_devices[0].hosts
        is_keras = isinstance(self._input, SpecInput)
        if is_keras and hosts and hosts.count(resources.num_devices) > 1:
            raise UserValueError(
                path=constraints.names.get("devices", "devices"),
                expected="devices of one host for a function's Keras model",
                got=Words(str(resources)),
                hint="Register it with a KerasTask, which the trainer runs on workers.",
            )
        if devices.names:  # Only relative times count until cells are measured.
            flops = {tracer.fprop_dtype: 1.0}
            device = dataclasses.replace(devices.models[0], flops=flops)
            resources = resources.of_kind(device)
        models = flops_models(tracer, resources.devices)
        self._slices, why_no_slices = self._task.pipeline.slices, ""
        if self._slices is None and not fits(models, resources, constraints):
            whole_model = tracer, models
            try:
                self._slices, (tracer, models) = find_slices(
                    self._task, self._batch_spec, whole_model, resources, constraints
                )
            except NothingFits as error:
                why_no_slices = f" {error}"
        try:
            if devices.names:
                return plan_measured(tracer, devices.names, resources, constraints)
            return plan(models, resources, constraints)
        except NothingFits as error:
            raise NothingFits(f"{error}{why_no_slices}") from error

    def _with_independent_stages(self, constraints: Constraints) -> Constraints:
        """Adds the constraints of a loop of several steps, if the model has one.

        They are one replica and, if weights are tied, one device.
        """
        if self._task.train.steps_per_loop == 1:
            return constraints
        ones: dict[str, Any] = {"num_replicas": 1}
        if self._task.pipeline.tied:
            ones["num_devices"] = 1
        for name in ones:
            if getattr(constraints, name) not in (None, 1):
                raise UserValueError(
                    path=constraints.names.get(name, name),
                    expected="1 with task.train.steps_per_loop above 1"
                    + " and tied weights" * (name == "num_devices"),
                    got=getattr(constraints, name),
                )
        return dataclasses.replace(constraints, **ones)

    def title(self, devices: Devices) -> str:
        """Returns a line that names the model, its size and the devices."""
        resources = self.resources(devices)
        return (
            f"{self.name}: {self._tracer.num_cells:,} cells, {self.num_parameters:,} "
            f"parameters, {resources.batch_size:,} rows a step, on {resources}"
        )

    @property
    def max_steps(self) -> int | None:
        return self._task.train.max_steps

    @property
    def num_examples(self) -> int | None:
        """Number of training examples, or None if it is not known."""
        with contextlib.suppress(OSError, ValueError):
            return getattr(self._input, "num_examples", None)
        return None

    def how_to_run(self, best: Evaluation, hosts: Hosts | None) -> list[str]:
        """Returns lines with which the user runs the model in this way."""
        if isinstance(self._input, SpecInput):
            offloads_slots = self._task.train.offload_slots
            return pipelined_model_call(best, offloads_slots)
        chosen = best.candidate.params(best.boundaries)
        return run_flags(best, self.all_changes(chosen), hosts)

    def all_changes(self, chosen: Collection[str] = ()) -> str:
        """Returns the user's changes of params and `changes`, as one text."""
        planned = self.changes(chosen)
        changed = {change.split()[0] for change in planned}
        kept = [str(entry) for entry in self._entries if entry.path not in changed]
        size = self._own_batch_size
        batch = [] if size is None else [f"{_BATCH_SIZE} : {size}"]
        return "; ".join([*kept, *batch, *planned])

    def changes(self, chosen: Collection[str] = ()) -> list[str]:
        """Returns the changes of params that the plan requires, as "path : value".

        Leaves out the `chosen` params of the pipeline.
        """
        values = {x: None for x in self._not_none if x not in chosen}
        if self._slices != self._own_slices:
            values["slices"] = self._slices
        return [
            f"task.pipeline.{name}{' (dict)' * isinstance(value, dict)} : {value}"
            for name, value in values.items()
        ]

    def resources(self, devices: Devices) -> Resources:
        limit = self._task.pipeline.memory_limit
        return Resources(
            devices.models,
            self._batch_size,
            self._tracer.fprop_dtype,
            memory_limit=None if limit is None else int(limit),
        )

    @functools.cached_property
    def _tracer(self) -> ModelTracer:
        return ModelTracer(self._task, self._batch_spec)


def _set_planned(pipeline: InstantiableParams) -> None:
    values = {"num_micro_batches": 1, "schedule": "gpipe"}
    planned = {x: values.get(x) for x in PLANNED if is_auto(pipeline.Get(x))}
    pipeline.Set(**planned)
    check_each_param(pipeline, "task.pipeline")


def _check_changes(paths: Sequence[str], batch_size: int | None, flag: str) -> None:
    names = (match[1] for match in map(_PIPELINE_PARAM.match, paths) if match)
    if planned := [f"task.pipeline.{name}" for name in names if name in _PLANNED]:
        raise UserValueError(
            path=flag or "overrides",
            expected="no params that are planned",
            got=Words(", ".join(planned)),
            hint="num_replicas, num_stages, num_micro_batches, schedule, recompute "
            "and offload set some of them.",
        )
    if batch_size is not None and _BATCH_SIZE in paths:
        raise UserValueError(
            path="--batch" if flag else "batch_size",
            expected=f"None beside {_BATCH_SIZE}, which is the same",
            got=batch_size,
        )


def models_with_prefix(prefix: str, flag: str, hint: str) -> list[str]:
    """Returns the names of registered models that begin with a prefix.

    Raises:
        ValueError: if no name does. The error names the flag, and ends with the hint.
    """
    model_registry.ImportAll()
    all_names = model_registry.ListModels()
    if names := [name for name in all_names if name.startswith(prefix)]:
        return names
    prefixes = {
        ".".join(name.split(".")[:n])
        for name in all_names
        for n in range(1, name.count(".") + 2)
    }
    raise UserValueError(
        path=flag,
        expected="a prefix of names of registered models, such as lm.giant",
        got=prefix,
        names=sorted(prefixes),
        hint=hint,
    )


def largest_that_fits(
    family: str,
    register: Callable[[str], PlannedModel],
    plan: Callable[[PlannedModel], _Plan],
    log: Callable[[str], None],
) -> _Plan:
    """Plans a family's models, the largest first, until one fits, and returns its plan.

    `register` returns the model with a name. `plan` raises NothingFits if a model does
    not fit. A model that cannot be planned is left out, and logged.

    Raises:
        ValueError: if no model's name begins with `family`, or none fits.
    """
    names = models_with_prefix(
        family,
        "--largest",
        "--model_imports imports other packages; --list_models lists models.",
    )
    models = []
    for name in names:
        try:
            model = register(name)
            models.append((model.num_parameters, model))
        except ValueError as error:
            log(f"{name} cannot be planned: {error}")
    for num_parameters, model in sorted(models, key=lambda x: -x[0]):
        log(f"{model.name}, {num_parameters:,} parameters:")
        try:
            return plan(model)
        except ValueError as error:
            log(f"  {error}")
    raise UserValueError(
        path="--largest",
        expected="a model that fits",
        got=family,
        hint="See above. Take more or larger devices.",
    )
