"""Trains a small pipeline on several lists of devices, those of workers among them.

Takes JSON of the workers' addresses and of a list of (devices, schedule); prints JSON
of a hash of all variables for each.
"""

from __future__ import annotations

import hashlib
import json
import sys

import tensorflow as tf

from lingvo_pipe.pipeline.devices.stage_devices import initialize_devices
from tests.pipeline.example_layers import gradients, image_batch, image_cells, pipeline

NUM_STEPS = 3


def _train(devices: list[str], schedule: str) -> str:
    layer = pipeline(image_cells(), 2, 4, devices=devices, schedule=schedule)
    variables = tf.nest.flatten(layer.vars)
    for step in range(NUM_STEPS):
        result = gradients(layer, image_batch(8, seed=step), step)
        found = tf.nest.flatten(result.gradients)
        for variable, gradient in zip(variables, found, strict=True):
            if gradient is not None:
                variable.assign_sub(0.1 * gradient)
    values = b"".join(variable.numpy().tobytes() for variable in variables)
    return hashlib.sha256(values).hexdigest()


if __name__ == "__main__":
    workers, runs = map(json.loads, sys.argv[1:])
    named = dict.fromkeys(name for devices, _ in runs for name in devices)
    initialize_devices(list(named), workers)
    print(json.dumps([_train(*run) for run in runs]))
