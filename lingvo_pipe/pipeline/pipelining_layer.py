"""PipeliningLayer: a sequence of layers that trains on several devices as if on one.

    cell_tpl  [ l0  l1  l2  l3  l4 ]      splits = [2, 4, 5]
                '--.--' '--.--' '.'
    devices      cpu:0   cpu:1  cpu:2

Shapes: B examples in the mini-batch, the first dimension of every input and target; M
micro-batches of B / M examples each.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers import forward_context
from lingvo_pipe.layers.base_layer import BaseLayer
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.devices import stage_devices
from lingvo_pipe.pipeline.loss_function import LossFunction
from lingvo_pipe.pipeline.micro_batches import (
    as_tensors,
    merge,
    micro_batch_size,
    split,
)
from lingvo_pipe.pipeline.partition import is_count, resolve_ends
from lingvo_pipe.pipeline.pipeline_function import PipelineFunction
from lingvo_pipe.pipeline.schedule import Schedule, forward_only, gpipe

# Beyond so many it looks like an oversight; a training and its evaluation make two.
_MANY_PIPELINES = 8

MakeSchedule = Callable[[int, int], Schedule]


class PipeliningLayer(BaseLayer):
    """Runs its cells in stages, one a device, on M micro-batches at a time.

    Weights live on the device of their stage. Their paths, and so checkpoints, know
    nothing of the stages.
    """

    @classmethod
    def Params(cls) -> InstantiableParams:
        """Params: the cells, and how they are split."""
        p = super().Params()
        p.Define("cell_tpl", [], "Params of the layers, in order; at least one.")
        p.Define(
            "splits",
            1,
            "The number of stages, of as even a number of layers as can be; or a list "
            "of the stages' ends: the number of layers up to and including each.",
        )
        p.Define("num_micro_batches", 1, "M; must divide the mini-batch.")
        p.Define(
            "micro_batch_size",
            None,
            "Number of examples in a micro-batch; None: the mini-batch over M.",
        )
        p.Define(
            "devices",
            None,
            "Full name of each stage's device; None: the first of this process's.",
        )
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        p = self.params
        if not isinstance(p.cell_tpl, (list, tuple)) or not p.cell_tpl:
            raise ValueError(
                "cell_tpl must be a list of at least one layer's Params; that of "
                f"{self.path} is {p.cell_tpl!r}."
            )
        if not is_count(p.num_micro_batches):
            raise ValueError(
                "num_micro_batches must be an integer of at least 1; "
                f"{self.path} has {p.num_micro_batches!r}."
            )
        self._ends = resolve_ends(p.splits, len(p.cell_tpl))
        self._devices = stage_devices(p.devices, len(self._ends))
        self._pipelines: dict[Any, PipelineFunction] = {}
        self.CreateChildren(
            "cells",
            p.cell_tpl,
            [self._devices[self.stage_of_cell(i)] for i in range(len(p.cell_tpl))],
        )

    @property
    def num_stages(self) -> int:
        """K."""
        return len(self._ends)

    @property
    def devices(self) -> list[str]:
        """The device of each stage."""
        return list(self._devices)

    def stage_of_cell(self, index: int) -> int:
        """The stage that a cell belongs to."""
        return next(stage for stage, end in enumerate(self._ends) if index < end)

    def FProp(self, theta: NestedMap, *args: Any) -> Any:
        """Runs the cells, pipelined, without keeping anything for a backward pass.

        Args:
            theta: weights.
            *args: inputs `[B, ...]` of the first cell: tensors, NestedMaps or None.

        Returns:
            The last cell's outputs, `[B, ...]`.
        """
        return merge(self._run(forward_only, theta, args, None, None).outputs)

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
                scalars. Pass the same function each time: for each, the pipeline is
                built anew.

        Returns:
            NestedMap(name=(mean, weight)) over the mini-batch.
        """
        return self._run(forward_only, theta, inputs, targets, loss_fn).metrics

    def ComputeGradients(
        self,
        theta: NestedMap,
        inputs: Sequence[Any],
        targets: Any,
        loss_fn: LossFunction,
    ) -> NestedMap:
        """Runs the cells and the loss forward and backward, pipelined.

        Args:
            theta: weights; in the variables' own dtypes (`vars`), gradients are too.
            inputs: see `ComputeMetrics`.
            targets: see `ComputeMetrics`.
            loss_fn: see `ComputeMetrics`; its 'loss' is what is differentiated.

        Returns:
            NestedMap:
                metrics: as from `ComputeMetrics`.
                gradients: of the mini-batch's mean loss, in the structure of `theta`,
                    each on its weight's device; None for what is not trained.
                accumulated: totals in the structure of `accumulators`.
        """
        result = self._run(gpipe, theta, inputs, targets, loss_fn)
        cells = [cell for stage in result.gradients for cell in stage]
        return NestedMap(
            metrics=result.metrics,
            gradients=NestedMap(cells=cells),
            accumulated=self.AccumulatedTree(result.accumulated),
        )

    def _run(
        self,
        make_schedule: MakeSchedule,
        theta: NestedMap,
        inputs: Sequence[Any],
        targets: Any,
        loss_fn: LossFunction | None,
    ) -> NestedMap:
        p = self.params
        context = forward_context.current()
        self._check_theta(theta)
        if not isinstance(inputs, (list, tuple)):
            raise ValueError(
                "inputs must be a list of the first cell's positional inputs; "
                f"{self.path} was given a {type(inputs).__name__}. Put it in a list."
            )
        batch = as_tensors((tuple(inputs), targets), self.path)
        micro_batch_size(batch, p.num_micro_batches, p.micro_batch_size, self.path)
        inputs, targets = split(batch, p.num_micro_batches)
        step, first = context.step, context.first_example
        arguments = NestedMap(
            thetas=self._by_stage(theta.cells),
            step=None if step is None else tf.convert_to_tensor(step),
            first_example=tf.cast(0 if first is None else first, tf.int64),
            inputs=inputs,
            targets=targets,
        )
        specs = tf.nest.map_structure(_shape_and_dtype, arguments)
        key = (make_schedule, loss_fn, context.do_eval, repr(specs))
        if key not in self._pipelines:
            if len(self._pipelines) == _MANY_PIPELINES:
                tf.get_logger().warning(
                    "%s was built for %d combinations of shapes and loss functions, "
                    "each kept; building takes long. Give batches of few shapes, and "
                    "the same loss function instead of a new lambda in each call.",
                    self.path,
                    len(self._pipelines),
                )
            self._pipelines[key] = PipelineFunction(
                make_schedule(self.num_stages, p.num_micro_batches),
                self._by_stage(self.cells),
                self._devices,
                arguments,
                loss_fn,
                context.do_eval,
                name=self.path,
            )
        return self._pipelines[key](arguments)

    def _check_theta(self, theta: NestedMap) -> None:
        try:
            tf.nest.assert_same_structure(theta, self.vars)
        except (TypeError, ValueError) as error:
            raise ValueError(
                "theta must have the structure of vars: "
                f"{tf.nest.map_structure(_shape_and_dtype, self.vars)}; {self.path} "
                f"was given {tf.nest.map_structure(_shape_and_dtype, theta)}."
            ) from error

    def _by_stage(self, cells: Sequence[Any]) -> list[list[Any]]:
        return [list(cells[a:b]) for a, b in itertools.pairwise([0, *self._ends])]


def _shape_and_dtype(x: Any) -> Any:
    return None if x is None else (tuple(x.shape), x.dtype.name)
