"""PipeliningLayer: a sequence of layers that trains on several devices as if on one.

    cell_tpl  [ l0  l1  l2  l3  l4 ]      splits = [2, 4, 5]
                '--.--' '--.--' '.'
    devices      cpu:0   cpu:1  cpu:2

Shapes: B examples in the mini-batch, dimension `batch_dim` of each input and target; M
micro-batches of B / M examples each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers import forward_context
from lingvo_pipe.layers.base_layer import BaseLayer
from lingvo_pipe.layers.tied_variables import tying
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.before import Before, BeforeRun
from lingvo_pipe.pipeline.boundary_bytes import Bytes
from lingvo_pipe.pipeline.devices.stage_devices import must_compile
from lingvo_pipe.pipeline.given_schedule import checked_schedule
from lingvo_pipe.pipeline.homes import homes_in_turn
from lingvo_pipe.pipeline.micro_batches import MicroBatches, as_tensors
from lingvo_pipe.pipeline.pipeline_function import PipelineFunction
from lingvo_pipe.pipeline.pipelining_params import (
    define_pipelining_params,
    make_layout,
)
from lingvo_pipe.pipeline.pipelining_rules import check_not_nested
from lingvo_pipe.pipeline.plan import OWN_CPU, Plan
from lingvo_pipe.pipeline.run_arguments import run_arguments
from lingvo_pipe.pipeline.runs import Runs
from lingvo_pipe.pipeline.schedules.schedule import Schedule
from lingvo_pipe.pipeline.theta_check import check_theta
from lingvo_pipe.pipeline.tied_gradients import sum_tied
from lingvo_pipe.pipeline.tracing.loss_sums import LossFunction


class PipeliningLayer(BaseLayer):
    """Runs its cells in stages, one a device, on M micro-batches at a time.

    Weights live on the device of their stage. Their paths, and so checkpoints, know
    nothing of the stages.
    """

    @classmethod
    def Params(cls) -> InstantiableParams:
        """Params: the cells, and how they are split."""
        p = super().Params()
        define_pipelining_params(p)
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        p = self.params
        layout = make_layout(p, self.path)
        self._layout = layout
        first = layout.replicas[0][0]
        with tying(p.tied, self.path):
            self.CreateChildren("before", p.before_tpl, [first] * len(p.before_tpl))
            homes = homes_in_turn(layout.ends, layout.replicas)
            self.CreateChildren("cells", p.cell_tpl, homes)
        children = (*self.before, *self.cells)
        check_not_nested(children, PipeliningLayer, self.path)
        plan = Plan(
            layers=self.cells,
            ends=layout.ends,
            replicas=layout.replicas,
            num_parts=layout.num_parts,
            recomputed=layout.recomputed,
            jit_compile=[p.jit_compile or must_compile(d) for d in layout.replicas[0]],
            name=self.path,
            batch_dim=p.batch_dim,
            state_dtype=p.state_dtype,
            inputs_home=first if p.before_tpl else OWN_CPU,
        )
        self._before = Before(self.before, plan)
        self._runs = Runs(plan)

    @property
    def num_stages(self) -> int:
        """K."""
        return len(self._layout.ends)

    @property
    def ends(self) -> list[int]:
        """Of the stages, as `splits` may list them."""
        return list(self._layout.ends)

    @property
    def schedule(self) -> Schedule:
        """What each device does in a training step."""
        return self._layout.schedule

    @property
    def devices(self) -> list[str]:
        """The device of each stage; of the first replica's, if there are several."""
        return list(self._layout.replicas[0])

    @property
    def replicas(self) -> list[list[str]]:
        """For each replica the device of each stage."""
        return [list(devices) for devices in self._layout.replicas]

    @property
    def plan(self) -> Plan:
        """What its runs are built from."""
        return self._runs.plan

    @property
    def functions(self) -> list[PipelineFunction]:
        """The functions built so far, one for each kind of run and shapes."""
        return self._runs.cache.functions

    def stage_of_cell(self, index: int) -> int:
        """The stage that a cell belongs to.

        Raises:
            ValueError: if there is no such cell.
        """
        num_cells = self._layout.ends[-1]
        if not 0 <= index < num_cells:
            raise ValueError(
                f"{self.path} has {num_cells} cells; there is no cell {index}. Count "
                "them from 0."
            )
        return next(stage for stage, end in enumerate(self._layout.ends) if index < end)

    def FProp(self, theta: NestedMap, *args: Any) -> Any:
        """Runs the cells, pipelined.

        It keeps nothing: a tape around it that asks for a gradient has the pipeline
        run once more, forward and backward. `ComputeGradients` does with one run.
        Losses and metrics that cells add are those of `ComputeMetrics` and
        `ComputeGradients`; here they are left out. Weights that are not trained have
        no gradient.

        Args:
            theta: weights.
            *args: inputs `[B, ...]` of the first cell: tensors, NestedMaps or None.

        Returns:
            The last cell's outputs, `[B, ...]`.
        """
        before = self._run_before(theta, args)
        cut, arguments = self._arguments(theta, before.outputs)
        outputs = self._runs.outputs(self._layout.schedule, arguments)
        for path, total in before.accumulated.items():
            forward_context.current().accumulate(path, total)
        return cut.merge(outputs, self.path)

    def ComputeMetrics(
        self,
        theta: NestedMap,
        inputs: Sequence[Any],
        targets: Any,
        loss_fn: LossFunction,
    ) -> NestedMap:
        """Runs the cells and the loss, pipelined, without gradients.

        Args:
            theta: weights.
            inputs: the positional inputs of the first cell, `[B, ...]` each.
            targets: what the loss needs beside the outputs, `[B, ...]` each.
            loss_fn: run on the last device for each micro-batch:
                `(outputs, targets) -> NestedMap(name=(mean, weight))`, pure and of
                scalars. Where cells add losses, the weight of 'loss' must follow from
                the targets. A mean over nothing, of weight 0, must be a number too: a
                micro-batch may have no example that counts. Pass the same function
                each time: for each, the pipeline is built anew.

        Returns:
            NestedMap(name=(mean, weight)) over the mini-batch.
        """
        before = self._run_before(theta, inputs)
        _, arguments = self._arguments(theta, before.outputs, targets)
        schedule = self._layout.schedule.forward_part()
        return self._runs.with_loss(schedule, arguments, loss_fn).metrics

    def ComputeGradients(
        self,
        theta: NestedMap,
        inputs: Sequence[Any],
        targets: Any,
        loss_fn: LossFunction,
        schedule: Schedule | None = None,
    ) -> NestedMap:
        """Runs the cells and the loss forward and backward, pipelined.

        Args:
            theta: weights; in the variables' own dtypes (`vars`), gradients are too.
            inputs: see `ComputeMetrics`.
            targets: see `ComputeMetrics`.
            loss_fn: see `ComputeMetrics`; its 'loss' is what is differentiated.
            schedule: instead of the layer's own, for stages on the same devices.

        Returns:
            NestedMap:
                metrics: as from `ComputeMetrics`.
                gradients: of the mini-batch's mean loss, in the structure of `theta`,
                    each on its weight's device; None for what is not trained, and in
                    the second place of a tied weight.
                accumulated: totals in the structure of `accumulators`; None in an
                    evaluation, which has none.
                times: for each device when its operations ran, those of a replica after
                    those of another, and parts one after another; see
                    `DeviceLoop.emit`.
        """
        schedule = checked_schedule(schedule, self._layout.schedule, self.path)
        before = self._run_before(theta, inputs, trains=True)
        cut, arguments = self._arguments(theta, before.outputs, targets)
        result = self._runs.with_loss(
            schedule, arguments, loss_fn, input_gradients=bool(self.before)
        )
        gradients = NestedMap(
            before=before.gradients(cut.merge_gradients(result.input_gradients)),
            cells=result.gradients,
        )
        totals = {**before.accumulated, **result.accumulated}
        do_eval = forward_context.current().do_eval
        return NestedMap(
            metrics=result.metrics,
            gradients=sum_tied(self.vars, gradients),
            accumulated=None if do_eval else self.AccumulatedTree(totals),
            times=result.times,
        )

    def PeakBytes(
        self,
        inputs: Sequence[Any],
        targets: Any,
        loss_fn: LossFunction,
        schedule: Schedule | None = None,
    ) -> list[int]:
        """The most memory that each device's tensors take between operations, in bytes.

        The devices of a replica stand behind those of another.
        Counted are weights, the totals of their gradients, what is kept of
        micro-batches at the worst moment, and what the layers before keep of the
        mini-batch; not what an operation needs while it runs, nor tensors within a
        layer whose size only a run decides, such as what tf.boolean_mask makes.

        Args:
            inputs: as of `ComputeGradients`.
            targets: likewise.
            loss_fn: likewise.
            schedule: likewise.
        """
        schedule = checked_schedule(schedule, self._layout.schedule, self.path)
        theta = self.vars  # In the dtypes in which a training step is given them.
        before = self._run_before(theta, inputs, trains=True)
        _, arguments = self._arguments(theta, before.outputs, targets)
        peaks = self._runs.peak_bytes(schedule, arguments, loss_fn, bool(self.before))
        peaks *= len(self._layout.replicas)
        peaks[schedule.device_of_stage()[0]] += before.num_bytes
        return peaks

    def BoundaryBytes(
        self,
        inputs: Sequence[Any],
        targets: Any,
        loss_fn: LossFunction,
        schedule: Schedule | None = None,
    ) -> Bytes:
        """How many bytes a training step sends from device to device, by shapes.

        Counted are values and gradients between stages, and between replicas weights
        and totals of their gradients; not the mini-batch, nor tied weights on their
        way to their second places, nor single numbers.

        Args:
            inputs: as of `ComputeGradients`.
            targets: likewise.
            loss_fn: likewise.
            schedule: likewise.

        Returns:
            Bytes by full names of the device that sends and the one that receives.
        """
        schedule = checked_schedule(schedule, self._layout.schedule, self.path)
        before = self._run_before(self.vars, inputs, trains=True)
        _, arguments = self._arguments(self.vars, before.outputs, targets)
        needs_inputs = bool(self.before)
        return self._runs.boundary_bytes(schedule, arguments, loss_fn, needs_inputs)

    def Diagnose(
        self,
        theta: NestedMap,
        inputs: Sequence[Any],
        targets: Any,
        loss_fn: LossFunction,
    ) -> None:
        """Runs a step that failed once more, layer by layer.

        For an error of `ComputeGradients` or, in evaluation, of `ComputeMetrics` that
        says no more than that something was cancelled.

        Args:
            theta: as of the run that failed.
            inputs: likewise.
            targets: likewise.
            loss_fn: likewise.

        Raises:
            tf.errors.OpError: that of the operation that fails, naming the layer;
                nothing if none does now.
        """
        trains = not forward_context.current().do_eval
        before = self._run_before(theta, inputs, trains)
        _, arguments = self._arguments(theta, before.outputs, targets)
        schedule = self._layout.schedule
        schedule = schedule if trains else schedule.forward_part()
        needs_inputs = bool(self.before) and trains
        self._runs.diagnose(schedule, arguments, loss_fn, needs_inputs)
        if needs_inputs:
            # What is left is the backward of the layers before.
            self.ComputeGradients(theta, inputs, targets, loss_fn)

    def _run_before(
        self, theta: NestedMap, inputs: Sequence[Any], trains: bool = False
    ) -> BeforeRun:
        """Runs the layers before the cells."""
        check_theta(theta, self.vars, self.path)
        if not isinstance(inputs, (list, tuple)):
            raise ValueError(
                "inputs must be a list of the first cell's positional inputs; "
                f"{self.path} was given a {type(inputs).__name__}. Put it in a list."
            )
        args = as_tensors(tuple(inputs), self.path)
        return self._before.run(theta["before"], args, trains)

    def _arguments(
        self, theta: NestedMap, inputs: Sequence[Any], targets: Any = None
    ) -> tuple[MicroBatches, NestedMap]:
        """What a run is given."""
        return run_arguments(self.params, self.path, theta, inputs, targets)
