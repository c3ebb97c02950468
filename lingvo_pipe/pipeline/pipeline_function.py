"""The function that one run of a pipeline calls: stages traced, loops emitted.

It is pure: weights, step, inputs and targets come in as arguments, gradients and totals
come out; nothing is captured. Building it takes the time, so a pipeline keeps one for
each set of shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from lingvo_pipe.layers.base_layer import BaseLayer
from lingvo_pipe.layers.sequential import as_args
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.check import check
from lingvo_pipe.pipeline.emit import Emitter
from lingvo_pipe.pipeline.gradient_barrier import call_without_gradient
from lingvo_pipe.pipeline.layer_function import LayerFunctions
from lingvo_pipe.pipeline.loss_function import LossFunction
from lingvo_pipe.pipeline.optional_nest import (
    map_present,
    pack_present,
    present,
    spec_of,
)
from lingvo_pipe.pipeline.schedule import Schedule
from lingvo_pipe.pipeline.stage import Stage
from lingvo_pipe.pipeline.turns import take_turns


class PipelineFunction:
    """Weights, step, inputs, targets -> gradients, metrics, totals, outputs."""

    def __init__(
        self,
        schedule: Schedule,
        stage_layers: Sequence[Sequence[BaseLayer]],
        devices: Sequence[str],
        arguments: NestedMap,
        loss_fn: LossFunction | None,
        do_eval: bool,
        name: str,
    ):
        """Builds the function.

        Args:
            schedule: what each device does; checked here.
            stage_layers: the layers of each stage.
            devices: full names, one for each stage.
            arguments: NestedMap(thetas, step, first_example, inputs, targets) of
                tensors or specs, as the function will be called with; inputs and
                targets stacked by micro-batch.
            loss_fn: see `Stage`.
            do_eval: whether layers run in evaluation.
            name: of its channels, and of the lock that those of one name share.
        """
        check(schedule)
        self._devices = devices
        self._name = name
        specs = map_present(spec_of, arguments)
        self._stages = _trace_stages(stage_layers, specs, loss_fn, do_eval)
        emitter = Emitter(
            schedule,
            self._stages,
            devices,
            micro_batch_size=present([specs.inputs, specs.targets])[0].shape[1],
            channel_prefix=self._name,
        )
        self._tables = [np.array(table, np.int32) for table in emitter.tables]
        self._arguments = NestedMap(specs, columns=[spec_of(t) for t in self._tables])
        self._emit(emitter)

    def __call__(self, arguments: NestedMap) -> NestedMap:
        """Runs the pipeline.

        Returns:
            NestedMap:
                gradients: for each stage, for each of its layers, in theta's structure;
                    of the mean loss; None for what is not trained, and everywhere if
                    the schedule has no backward.
                metrics: NestedMap(name=(mean, weight)) over the mini-batch.
                accumulated: dict of totals by the accumulators' paths.
                outputs: the last stage's, stacked by micro-batch; None with a loss.
        """
        results = call_without_gradient(
            self._function,
            present(NestedMap(arguments, columns=self._tables)),
            self._argument_devices(),
            self._result_devices,
            _refuse_gradient,
        )
        packed = pack_present(self._results, results)
        packed.accumulated = dict(
            zip(self._accumulator_paths, packed.accumulated, strict=True)
        )
        return packed

    @property
    def graph(self) -> tf.Graph:
        """The emitted graph."""
        return self._function.graph

    def _emit(self, emitter: Emitter) -> None:
        def emit(*flat: tf.Tensor) -> list[tf.Tensor]:
            arguments = pack_present(self._arguments, flat)

            def run() -> list[tf.Tensor]:
                results = self._finish(emitter.emit(arguments), arguments)
                self._accumulator_paths = sorted(results.accumulated)
                results.accumulated = [
                    results.accumulated[path] for path in self._accumulator_paths
                ]
                self._results = map_present(spec_of, results)
                self._result_devices = [x.device for x in present(results)]
                return present(results)

            return take_turns(self._name, flat, run)

        self._function = tf.compat.v1.wrap_function(emit, present(self._arguments))

    def _argument_devices(self) -> list[str]:
        """Where each of the flat arguments is used."""

        def everywhere(structure: Any, device: str) -> Any:
            return map_present(lambda x: device, structure)

        places = {
            k: everywhere(v, self._devices[0]) for k, v in self._arguments.items()
        }
        places["targets"] = everywhere(self._arguments.targets, self._devices[-1])
        places["thetas"] = list(map(everywhere, self._arguments.thetas, self._devices))
        return present(places)

    def _finish(self, raw: NestedMap, arguments: NestedMap) -> NestedMap:
        """From totals to means, on the devices where the totals are."""
        last = self._stages[-1]
        metrics = NestedMap()
        with tf.device(self._devices[-1]):
            for name, (total, weight) in raw.sums[-1].metrics.items():
                metrics[name] = (_mean(total, weight, total.dtype), weight)
        gradients = []
        for k, (stage, thetas) in enumerate(
            zip(self._stages, arguments.thetas, strict=True)
        ):
            with tf.device(self._devices[k]):
                # No totals without a backward.
                totals = zip(raw.gradients[k], stage.trained(thetas), strict=False)
                means = [_mean(g, metrics.loss[1], like.dtype) for g, like in totals]
            gradients.append(stage.pack_trained(thetas, means))
        accumulated: dict[str, tf.Tensor] = {}
        for sums in raw.sums:
            accumulated.update(sums.accumulated)
        outputs = None if last.has_loss else last.outputs.pack(raw.outputs)
        return NestedMap(
            gradients=gradients,
            metrics=metrics,
            accumulated=accumulated,
            outputs=outputs,
        )


def _trace_stages(
    stage_layers: Sequence[Sequence[BaseLayer]],
    specs: NestedMap,
    loss_fn: LossFunction | None,
    do_eval: bool,
) -> list[Stage]:
    functions = LayerFunctions(do_eval)
    stages: list[Stage] = []
    args = map_present(_micro_batch_spec, specs.inputs)
    targets = map_present(_micro_batch_spec, specs.targets)
    for k, (layers, thetas) in enumerate(zip(stage_layers, specs.thetas, strict=True)):
        is_last = k + 1 == len(stage_layers)
        stage = Stage(
            layers,
            functions,
            thetas,
            specs.step,
            args,
            loss_fn if is_last else None,
            targets if is_last and loss_fn else None,
        )
        args = as_args(stage.outputs.structure)
        stages.append(stage)
    return stages


def _mean(total: tf.Tensor, weight: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """The mean over a mini-batch; 0 over no examples."""
    return tf.cast(tf.math.divide_no_nan(total, tf.cast(weight, total.dtype)), dtype)


def _refuse_gradient(*unused: tf.Tensor) -> None:
    raise ValueError(
        "A run of a PipeliningLayer keeps nothing for a gradient; there is none to "
        "take through FProp or ComputeMetrics. Use ComputeGradients."
    )


def _micro_batch_spec(x: Any) -> tf.TensorSpec:
    return tf.TensorSpec(x.shape[1:], x.dtype)
