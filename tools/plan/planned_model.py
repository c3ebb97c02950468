"""A registered model, ready to be planned."""

from __future__ import annotations

import functools
import re

import model_registry
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.planner.constraints import Constraints
from lingvo_pipe.planner.measured_models import plan_measured
from lingvo_pipe.planner.models_by_rows import counted_models
from lingvo_pipe.planner.planning import plan
from lingvo_pipe.planner.resources import Resources
from lingvo_pipe.planner.search import Found
from lingvo_pipe.planner.traced_model import ModelTracer
from tools.plan.rented import Rented

# Params of a pipeline that are None where it is planned, and those that are settled.
_NONE_WHERE_PLANNED = ("micro_batch_size", "num_parts")
_SETTLED = (
    *("splits", "stages_per_device", "num_replicas", "num_micro_batches"),
    *("schedule", "recompute", *_NONE_WHERE_PLANNED),
)


class PlannedModel:
    """A model as it is registered, with a user's changes.

    Attributes:
        name: its name.

    Args:
        name: likewise.
        task: params of its task.
        batch_spec: of a batch, `[B, ...]`.
        batch_size: B.
    """

    def __init__(
        self,
        name: str,
        task: InstantiableParams,
        batch_spec: NestedMap,
        batch_size: int,
    ):
        self.name = name
        self._task, self._batch_spec = task, batch_spec
        self._batch_size = batch_size

    @classmethod
    def registered(cls, name: str, override: str = "") -> PlannedModel:
        """Looks a model up.

        Raises:
            ValueError: if a change can't be made, or is of what is planned.
            LookupError: if there is no such model.
        """
        _check_override(override)
        params = model_registry.GetParams(name, "Train")
        params.FromText(override, separator=";")
        spec = params.input.Instantiate().element_spec
        return cls(name, params.task, spec, params.input.batch_size)

    @property
    def num_parameters(self) -> int:
        """Those that are trained."""
        return self._tracer.num_parameters

    def plan(
        self, devices: Rented, batch_size: int | None, constraints: Constraints
    ) -> Found:
        """Finds the fastest ways to run it.

        Args:
            devices: to run it on.
            batch_size: B; None: its own.
            constraints: what is settled already.

        Raises:
            ValueError: if constraints contradict each other, or nothing fits.
        """
        resources = self.resources(batch_size, devices)
        if devices.names:
            return plan_measured(self._tracer, devices.names, resources, constraints)
        dtype = self._tracer.fprop_dtype
        models = counted_models(self._tracer, devices.device, dtype)
        return plan(models, resources, constraints)

    def title(self, batch_size: int | None, devices: Rented) -> str:
        """What is planned, in a line."""
        resources = self.resources(batch_size, devices)
        return (
            f"{self.name}: {self._tracer.num_cells:,} cells, {self.num_parameters:,} "
            f"parameters, {resources.batch_size:,} rows a step, on {resources}"
        )

    def changes(self) -> list[str]:
        """Those of the model's own params with which what is planned could not run."""
        p = self._task.pipeline
        odd = [name for name in _NONE_WHERE_PLANNED if p.Get(name) is not None]
        return [f"task.pipeline.{name} : None" for name in odd]

    def resources(self, batch_size: int | None, devices: Rented) -> Resources:
        """What it is planned for."""
        size = self._batch_size if batch_size is None else batch_size
        limit = self._task.pipeline.memory_limit
        return Resources(
            devices.device,
            devices.number,
            size,
            self._tracer.fprop_dtype,
            None if limit is None else int(limit),
        )

    @functools.cached_property
    def _tracer(self) -> ModelTracer:
        return ModelTracer(self._task, self._batch_spec)


def _check_override(override: str) -> None:
    """Raises ValueError if it changes what is planned."""
    changed = re.findall(r"(?:^|;)\s*task\.pipeline\.(\w+)", override)
    if odd := [f"task.pipeline.{name}" for name in changed if name in _SETTLED]:
        raise ValueError(
            "--model_params_override must leave open what is planned; got "
            f"{', '.join(odd)}. Leave that out; --num_replicas, --num_stages, "
            "--num_micro_batches, --schedule and --recompute settle some of it."
        )
