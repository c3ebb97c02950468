"""Trains a small pipeline on several lists of devices, also of workers.

Arguments, as JSON: the workers' addresses, a list of (devices, schedule, True if all
steps run in one graph, offload), and this process's own address. Prints, as JSON, a
hash of all variables for each run, and the loopback addresses at which this process
answered.
"""

from __future__ import annotations

import hashlib
import json
import sys
from typing import Any

import tensorflow as tf

from lingvo_pipe.pipeline.devices.cluster_spec import Cluster
from lingvo_pipe.pipeline.devices.own_addresses import answers
from lingvo_pipe.pipeline.devices.stage_devices import initialize_devices
from lingvo_pipe.pipeline.pipeline_steps import PipelineSteps
from tests.pipeline.example_layers import (
    gradients,
    image_batch,
    image_cells,
    loss_fn,
    pipeline,
    raw_values,
)

NUM_STEPS = 3


def _train(
    devices: list[str], schedule: str, at_once: bool, offload: str | None
) -> str:
    layer = pipeline(
        image_cells(), 2, 4, devices=devices, schedule=schedule, offload=offload
    )
    batches = [image_batch(8, seed=step) for step in range(NUM_STEPS)]
    if at_once:
        steps = PipelineSteps(layer, lambda batch: batch, loss_fn, _descend)
        stacked = tf.nest.map_structure(lambda *x: tf.stack(x), *batches)
        first, tables = tf.constant(0, tf.int64), steps.tables(NUM_STEPS)
        steps.run(raw_values(layer), stacked, first, tables)
    else:
        for step, batch in enumerate(batches):
            _descend([layer], [gradients(layer, batch, step).gradients])
    values = [variable.numpy().tobytes() for variable in tf.nest.flatten(layer.vars)]
    return hashlib.sha256(b"".join(values)).hexdigest()


def _descend(layers: Any, all_gradients: Any, *unused: Any) -> list[Any]:
    variables = tf.nest.flatten([layer.vars for layer in layers])
    found = tf.nest.flatten(all_gradients)
    for variable, gradient in zip(variables, found, strict=True):
        if gradient is not None:
            variable.assign_sub(0.1 * gradient)
    return []


if __name__ == "__main__":
    workers, runs, own = map(json.loads, sys.argv[1:])
    named = dict.fromkeys(name for devices, *_ in runs for name in devices)
    initialize_devices(list(named), Cluster(tuple(workers), own))
    port = int(own.rpartition(":")[2])
    hosts = [f"127.0.0.{i}" for i in range(1, 6)]
    hosts = [host for host in hosts if answers(host, port, 0.5)]
    print(json.dumps([[_train(*run) for run in runs], hosts]))
