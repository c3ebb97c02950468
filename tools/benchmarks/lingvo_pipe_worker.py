"""Measures lingvo_pipe in a process of its own.

    python -m tools.benchmarks.lingvo_pipe_worker REQUEST

prints a `Report`; see `exchange`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

import tensorflow as tf

from lingvo_pipe.layers.forward_context import ForwardContext
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.devices.stage_devices import initialize_devices
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from tools.benchmarks.configuration import Configuration
from tools.benchmarks.exchange import Report, Request
from tools.benchmarks.other_programs import OtherPrograms
from tools.benchmarks.transformer_layer import TransformerLayer
from tools.benchmarks.workload import LEARNING_RATE


def main() -> None:
    """Prints the report that the first argument requests."""
    request = Request.from_json(sys.argv[1])
    os.sched_setaffinity(0, request.cores)
    print(_measure(request).to_json())


def _measure(request: Request) -> Report:
    configuration = request.configuration
    initialize_devices([f"cpu:{i}" for i in range(configuration.num_devices)])
    layer = _pipeline(configuration)
    batch = tf.constant(configuration.workload.batch())

    before = time.perf_counter()
    step = _train_step(layer, batch)
    loss = float(step(batch))
    start_seconds = time.perf_counter() - before

    others, step_seconds = OtherPrograms(request.cores), []
    for _ in range(request.num_steps):
        before = time.perf_counter()
        loss = float(step(batch))
        step_seconds.append(time.perf_counter() - before)
    other_cores = others.num_cores()
    peak = layer.PeakBytes([batch], None, _loss) if request.with_peak else None
    return Report(start_seconds, step_seconds, peak, loss, other_cores)


def _pipeline(configuration: Configuration) -> PipeliningLayer:
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
        recompute=recompute if isinstance(recompute, str) else list(recompute),
    )
    layer = p.Instantiate()
    for i, cell in enumerate(layer.cells):
        for name, value in workload.weights(i).items():
            cell.vars[name].assign(value)
    return layer


def _train_step(
    layer: PipeliningLayer, batch: tf.Tensor
) -> Callable[[tf.Tensor], tf.Tensor]:
    """The traced step: updates the weights and returns the loss."""

    def run(batch: tf.Tensor) -> tf.Tensor:
        theta = tf.nest.map_structure(_read, layer.vars)
        with ForwardContext(step=tf.constant(0, tf.int64)):
            result = layer.ComputeGradients(theta, [batch], None, _loss)
        for variable, gradient in zip(
            tf.nest.flatten(layer.vars),
            tf.nest.flatten(result.gradients),
            strict=True,
        ):
            with tf.device(variable.device):
                variable.assign_sub(LEARNING_RATE * gradient)
        return result.metrics.loss[0]

    return tf.function(run, autograph=False).get_concrete_function(batch)


def _read(variable: tf.Variable) -> tf.Tensor:
    with tf.device(variable.device):
        return variable.read_value()


def _loss(outputs: tf.Tensor, targets: None) -> NestedMap:
    weight = tf.cast(tf.shape(outputs)[0], tf.float32)
    return NestedMap(loss=(tf.reduce_mean(tf.square(outputs)), weight))


if __name__ == "__main__":
    main()
