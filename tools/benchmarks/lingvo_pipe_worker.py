"""Measures lingvo_pipe in a process of its own.

    python -m tools.benchmarks.lingvo_pipe_worker REQUEST WORKERS

answers with a `Report`; see `exchange`, and `turns` for when it does what. WORKERS is
JSON of the ids of the processes that lend their devices to the stages, by address; {}:
the stages are on devices of this process.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence

import tensorflow as tf

from lingvo_pipe.layers.forward_context import ForwardContext
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.devices.stage_devices import initialize_devices
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from tools.benchmarks.configuration import Configuration
from tools.benchmarks.exchange import Report, Request
from tools.benchmarks.other_programs import OtherPrograms
from tools.benchmarks.prediction import prediction_errors
from tools.benchmarks.transformer_layer import TransformerLayer
from tools.benchmarks.turns import Turns
from tools.benchmarks.workload import LEARNING_RATE


def main() -> None:
    """Answers with the report that the first argument requests."""
    request, workers = Request.from_json(sys.argv[1]), json.loads(sys.argv[2])
    turns = Turns()
    os.sched_setaffinity(0, request.cores)
    turns.answer(_measure(request, workers, turns).to_json())


def _measure(request: Request, workers: dict[str, int], turns: Turns) -> Report:
    configuration = request.configuration
    places = [f"worker:{i}/cpu:0" for i in range(len(workers))]
    places = places or [f"cpu:{i}" for i in range(configuration.num_devices)]
    layer = _pipeline(configuration, initialize_devices(places, list(workers)))
    batch = tf.constant(configuration.workload.batch())

    before = time.perf_counter()
    step = _train_step(layer, batch)
    loss = float(step(batch).loss)
    start_seconds = time.perf_counter() - before

    others = OtherPrograms(request.cores, workers.values())
    step_seconds, times = [], []
    for _ in range(request.num_steps):
        turns.wait()
        with others:
            before = time.perf_counter()
            result = step(batch)
            loss = float(result.loss)
            step_seconds.append(time.perf_counter() - before)
        times.append([of_device.numpy() for of_device in result.times])
    turns.wait()
    return Report(
        start_seconds,
        step_seconds,
        layer.PeakBytes([batch], None, _loss) if request.with_peak else None,
        loss,
        others.num_cores(),
        prediction_errors(layer, times) if configuration.is_predicted else [],
    )


def _pipeline(configuration: Configuration, devices: Sequence[str]) -> PipeliningLayer:
    workload, recompute = configuration.workload, configuration.recompute
    p = PipeliningLayer.Params().Set(
        name="pipeline",
        cell_tpl=[
            TransformerLayer.Params().Set(workload=workload)
            for _ in range(workload.num_layers)
        ],
        splits=configuration.num_stages,
        num_micro_batches=configuration.num_micro_batches,
        schedule=configuration.schedule,
        stages_per_device=configuration.stages_per_device,
        devices=devices,
        recompute=recompute if isinstance(recompute, str) else list(recompute),
    )
    layer = p.Instantiate()
    for i, cell in enumerate(layer.cells):
        for name, value in workload.weights(i).items():
            cell.vars[name].assign(value)
    return layer


def _train_step(
    layer: PipeliningLayer, batch: tf.Tensor
) -> Callable[[tf.Tensor], NestedMap]:
    """The traced step: updates the weights and returns NestedMap(loss, times)."""

    def run(batch: tf.Tensor) -> NestedMap:
        rate = tf.constant(LEARNING_RATE)
        theta = tf.nest.map_structure(_read, layer.vars)
        with ForwardContext(step=tf.constant(0, tf.int64)):
            result = layer.ComputeGradients(theta, [batch], None, _loss)
        for variable, gradient in zip(
            tf.nest.flatten(layer.vars),
            tf.nest.flatten(result.gradients),
            strict=True,
        ):
            with tf.device(variable.device):
                tf.raw_ops.ResourceApplyGradientDescent(
                    var=variable.handle, alpha=rate, delta=gradient
                )
        return NestedMap(loss=result.metrics.loss[0], times=result.times)

    return tf.function(run, autograph=False).get_concrete_function(batch)


def _read(variable: tf.Variable) -> tf.Tensor:
    with tf.device(variable.device):
        return variable.value()


def _loss(outputs: tf.Tensor, targets: None) -> NestedMap:
    weight = tf.cast(tf.shape(outputs)[0], tf.float32)
    return NestedMap(loss=(tf.reduce_mean(tf.square(outputs)), weight))


if __name__ == "__main__":
    main()
