"""PipeliningLayer: a sequence of layers that trains on several devices as if on one.

    cell_tpl  [ l0  l1  l2  l3  l4 ]      splits = [2, 4, 5]
                '--.--' '--.--' '.'
    devices      cpu:0   cpu:1  cpu:2

Shapes: B examples in the mini-batch, dimension `batch_dim` of each input and target; M
micro-batches; K stages.
"""

import bisect
from collections.abc import Sequence
from typing import Any

from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core import forward_context
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.core.tied_variables import tying
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.checked_schedule import checked_schedule
from lingvo_pipe.pipeline.devices.stage_devices import must_compile
from lingvo_pipe.pipeline.execution.micro_batches import MicroBatches, as_tensors
from lingvo_pipe.pipeline.execution.pipeline_function import PipelineFunction
from lingvo_pipe.pipeline.execution.pipeline_runs import (
    PipelineRuns,
    check_theta,
    run_arguments,
)
from lingvo_pipe.pipeline.execution.pipeline_spec import OWN_CPU, PipelineSpec
from lingvo_pipe.pipeline.execution.prologue import Prologue, PrologueRun
from lingvo_pipe.pipeline.execution.replicas import Bytes
from lingvo_pipe.pipeline.loops.run_data import RunArguments
from lingvo_pipe.pipeline.loops.stage_update import sum_tied
from lingvo_pipe.pipeline.pipelining_params import define_pipelining_params, make_layout
from lingvo_pipe.pipeline.pipelining_rules import check_not_nested
from lingvo_pipe.pipeline.schedules.schedule import Schedule
from lingvo_pipe.pipeline.schedules.table import make_tables
from lingvo_pipe.pipeline.tracing.loss_function import LossFunction, check_loss_function


class PipeliningLayer(BaseLayer):
    """A sequence of cells that runs M micro-batches in stages on several devices.

    A weight is on a device of its stage. Its path, and so checkpoints, do not depend on
    the stages.
    """

    @classmethod
    def Params(cls) -> InstantiableParams:
        """Returns params for the cells, their stages and devices."""
        p = super().Params()
        define_pipelining_params(p)
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        p = self.params
        layout = make_layout(p, self.path)
        self._layout = layout
        first = layout.devices[0]
        with tying(p.tied, self.path):
            self.CreateChildren("before", p.before_tpl, [first] * len(p.before_tpl))
            self.CreateChildren("cells", p.cell_tpl, layout.owners)
        check_not_nested(self.before, self.cells, PipeliningLayer, self.path)
        spec = PipelineSpec(
            layers=self.cells,
            layout=layout,
            jit_compile=[p.jit_compile or must_compile(d) for d in layout.devices],
            name=self.path,
            batch_dim=p.batch_dim,
            state_dtype=p.state_dtype,
            inputs_device=first if p.before_tpl else OWN_CPU,
        )
        self._prologue = Prologue(self.before, spec)
        self._runs = PipelineRuns(spec)

    @property
    def num_stages(self) -> int:
        """Number of stages, K."""
        return len(self._layout.boundaries)

    @property
    def boundaries(self) -> list[int]:
        """Stage boundaries: for each stage, the number of cells up to its end."""
        return list(self._layout.boundaries)

    @property
    def schedule(self) -> Schedule:
        """Schedule of a training step."""
        return self._layout.schedule

    @property
    def devices(self) -> list[str]:
        """Device of each stage, in the first replica."""
        return list(self._layout.devices)

    @property
    def replicas(self) -> list[list[str]]:
        """Devices of each replica, by stage."""
        return [list(devices) for devices in self._layout.replicas]

    @property
    def spec(self) -> PipelineSpec:
        """Specification from which all runs are built."""
        return self._runs.spec

    @property
    def functions(self) -> list[PipelineFunction]:
        """Functions built so far, one for each kind of run and shapes."""
        return self._runs.functions

    def stage_of_cell(self, index: int) -> int:
        """Returns the number of the stage that has a cell.

        Raises:
            ValueError: if there is no cell of this index.
        """
        boundaries = self._layout.boundaries
        if not 0 <= index < boundaries[-1]:
            raise UserValueError(
                path=f"{self.path}.stage_of_cell",
                expected=f"the index of one of {boundaries[-1]} cells, from 0",
                got=index,
            )
        return bisect.bisect(boundaries, index)

    def FProp(self, theta: NestedMap, *args: Any) -> Any:
        """Runs the cells, pipelined.

        If a tape records the call, the gradient runs the pipeline once more, forward
        and backward. `ComputeGradients` needs only one run, and also returns the losses
        and metrics that cells add. Untrained weights have no gradient.

        Args:
            theta: weights.
            *args: inputs `[B, ...]` of the first layer: tensors, NestedMaps or None.

        Returns:
            The last cell's outputs, `[B, ...]`.
        """
        prologue, cut, arguments = self._prepare(theta, args)
        schedule = self._layout.across_blocks
        outputs = self._runs.outputs(schedule, arguments, prologue.draws)
        for path, total in prologue.accumulated.items():
            forward_context.current_context().accumulate(path, total)
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
            inputs: positional inputs of the first layer, `[B, ...]` each.
            targets: targets of the loss, `[B, ...]` each.
            loss_fn: `(outputs, targets) -> NestedMap(name=(mean, weight))`, a pure
                function with scalar results, run in the last stage for each
                micro-batch. If no example of a micro-batch counts, it returns a weight
                of 0 and any finite mean. If cells add losses, the weight of 'loss' must
                depend only on the targets. Pass the same function each time: the
                pipeline is built again for each new one.

        Returns:
            NestedMap(name=(mean, weight)) over the mini-batch.
        """
        _, _, arguments = self._prepare(theta, inputs, targets)
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
            theta: weights, whose dtypes the gradients have. A graph is built faster
                from `vars` itself than from the variables' values.
            inputs: positional inputs of the first layer, `[B, ...]` each.
            targets: targets of the loss, `[B, ...]` each.
            loss_fn: see `ComputeMetrics`. Its 'loss' is differentiated.
            schedule: another schedule for the same stages on the same devices, or None
                for the layer's own.

        Returns:
            NestedMap:
                metrics: see `ComputeMetrics`.
                gradients: gradients of the mini-batch's mean loss, in the structure of
                    `theta`, each on its weight's device. None for weights that are not
                    trained, and for the second path of a tied weight.
                accumulated: sums that layers add, in the structure of `accumulators`,
                    or None in an evaluation.
                times: for each device, replica by replica, when its operations ran (see
                    `LoopResults`). A device's batch shards follow one another.
        """
        do_eval = forward_context.current_context().do_eval
        schedule = checked_schedule(schedule, self._layout, self.path, do_eval)
        prologue, cut, arguments = self._prepare(theta, inputs, targets, trains=True)
        result = self._runs.with_loss(
            schedule, arguments, loss_fn, input_gradients=bool(self.before)
        )
        gradients = NestedMap(
            before=prologue.gradients(cut.merge_gradients(result.input_gradients)),
            cells=result.gradients,
        )
        accumulators = {**prologue.accumulated, **result.accumulated}
        return NestedMap(
            metrics=result.metrics,
            gradients=sum_tied(self.vars, gradients),
            accumulated=None if do_eval else self.AccumulatedTree(accumulators),
            times=result.times,
        )

    def PeakBytes(
        self,
        inputs: Sequence[Any],
        targets: Any,
        loss_fn: LossFunction,
        schedule: Schedule | None = None,
    ) -> list[int]:
        """Returns the peak bytes of each device's tensors, replica by replica.

        Counts weights, gradient accumulators, stashes and workspace at their peak. Also
        counts what the allocator loses, and what the prologue needs. Does not count
        what waits on a GPU's host (see `HostBytes`), or tensors within a layer whose
        size only a run decides, such as those from tf.boolean_mask. See
        `ComputeGradients` for the arguments.
        """
        do_eval = forward_context.current_context().do_eval
        schedule = checked_schedule(schedule, self._layout, self.path, do_eval)
        prologue, function = self._traced(do_eval, schedule, inputs, targets, loss_fn)
        peaks = function.peak_bytes(schedule) * len(self._layout.replicas)
        peaks[schedule.device_of_stage()[0]] += prologue.num_bytes
        return peaks

    def HostBytes(
        self,
        inputs: Sequence[Any],
        targets: Any,
        loss_fn: LossFunction,
        schedule: Schedule | None = None,
    ) -> list[int]:
        """Returns the peak bytes that each device has on its host or in transit.

        See `ComputeGradients` for the arguments.
        """
        schedule = checked_schedule(schedule, self._layout, self.path)
        _, function = self._traced(False, schedule, inputs, targets, loss_fn)
        return function.peak_bytes(schedule, on_host=True) * len(self._layout.replicas)

    def BoundaryBytes(
        self,
        inputs: Sequence[Any],
        targets: Any,
        loss_fn: LossFunction,
        schedule: Schedule | None = None,
    ) -> Bytes:
        """Returns the bytes that a training step sends, by sender and receiver.

        The devices are given by full names. Counts activations and gradients between
        stages, and weights and gradient accumulators between replicas. Does not count
        the mini-batch, tied weights on the way to their second paths, or single
        numbers. See `ComputeGradients` for the arguments.
        """
        schedule = checked_schedule(schedule, self._layout, self.path)
        _, function = self._traced(False, schedule, inputs, targets, loss_fn)
        return function.boundary_bytes(self.params.num_micro_batches)

    def Diagnose(
        self,
        theta: NestedMap,
        inputs: Sequence[Any],
        targets: Any,
        loss_fn: LossFunction,
    ) -> None:
        """Reruns a failed step layer by layer, to find the operation that failed.

        Use this after an error that only reports a cancelled operation. Pass the
        arguments of the failed call of `ComputeGradients` or, in evaluation,
        `ComputeMetrics`.

        Raises:
            tf.errors.OpError: from the operation that fails now, naming the layer.
            FloatingPointError: if no operation fails, but a value is not finite.
        """
        trains = not forward_context.current_context().do_eval
        _, _, arguments = self._prepare(theta, inputs, targets, trains)
        training_schedule = self._layout.schedule
        schedule = training_schedule if trains else training_schedule.forward_part()
        function = self._function(not trains, schedule, arguments, loss_fn)
        function.diagnose(arguments)
        if trains and self.before:
            # Only the prologue's backward pass is left.
            self.ComputeGradients(theta, inputs, targets, loss_fn)

    def _prepare(
        self,
        theta: NestedMap,
        inputs: Sequence[Any],
        targets: Any = None,
        trains: bool = False,
    ) -> tuple[PrologueRun, MicroBatches, RunArguments]:
        check_theta(theta, self.vars, self.path)
        if not isinstance(inputs, (list, tuple)):
            raise UserValueError(
                path=f"{self.path}.inputs",
                expected="a list of the first layer's positional inputs",
                got=Words(type(inputs).__name__),
            )
        args = as_tensors(tuple(inputs), self.path)
        prologue = self._prologue.run(theta["before"], args, trains)
        return prologue, *run_arguments(
            self.params, self.path, theta, prologue.outputs, targets
        )

    def _traced(
        self,
        do_eval: bool,
        schedule: Schedule,
        inputs: Sequence[Any],
        targets: Any,
        loss_fn: LossFunction,
    ) -> tuple[PrologueRun, PipelineFunction]:
        # The variables have the dtypes of a training step.
        prologue, _, arguments = self._prepare(self.vars, inputs, targets, trains=True)
        return prologue, self._function(do_eval, schedule, arguments, loss_fn)

    def _function(
        self,
        do_eval: bool,
        schedule: Schedule,
        arguments: RunArguments,
        loss_fn: LossFunction,
    ) -> PipelineFunction:
        check_loss_function(loss_fn, self.path)
        input_gradients = bool(self.before) and schedule.has_backward
        return self._runs.function(
            make_tables(schedule), arguments, loss_fn, do_eval, input_gradients
        )
