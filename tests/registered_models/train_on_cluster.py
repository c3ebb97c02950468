"""Trains a registered model on devices of this process and of workers, in turn.

Arguments are the workers' addresses, the model's name and a list of pipeline params, as
JSON. Prints a hash of the final state for each of these.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import sys
from typing import Any

import tensorflow as tf

import model_registry
from lingvo_pipe.pipeline.devices.cluster_spec import Cluster
from lingvo_pipe.pipeline.devices.device_names import device_name
from lingvo_pipe.pipeline.devices.stage_devices import initialize_devices
from lingvo_pipe.training.step.train_step import TrainStep
from lingvo_pipe.training.task.pipeline_inputs import configure_inputs

NUM_STEPS = 20


def _train(model: str, pipeline: dict[str, Any]) -> str:
    params = model_registry.GetParams(model, "Train")
    params.task.pipeline.Set(**pipeline)
    given = params.input.Instantiate()
    configure_inputs(params.task, given)
    step = TrainStep(params.task.Instantiate())
    for batch in itertools.islice(given.TrainBatches(), NUM_STEPS):
        # Each read of a tensor on a worker would take some of its memory.
        devices = {x.device for x in tf.nest.flatten(step(batch))}
        assert {device_name(each).worker for each in devices} == {None}, devices
    digest = hashlib.sha256()
    for path, variable in sorted(step.State().items()):
        digest.update(path.encode())
        digest.update(variable.numpy().tobytes())
    return digest.hexdigest()


if __name__ == "__main__":
    workers, model, runs = map(json.loads, sys.argv[1:])
    names = dict.fromkeys(name for pipeline in runs for name in pipeline["devices"])
    initialize_devices(list(names), Cluster(tuple(workers)))
    print(json.dumps([_train(model, pipeline) for pipeline in runs]))
