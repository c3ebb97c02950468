"""Trains a registered model on devices of this process and of workers, in turn.

Takes the workers' addresses, the model's name and a list of pipeline params, as JSON;
prints for each of these a hash of all that the steps leave.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import sys
from typing import Any

import model_registry
from lingvo_pipe.pipeline.devices.cluster_spec import Cluster
from lingvo_pipe.pipeline.devices.stage_devices import initialize_devices
from lingvo_pipe.training.pipeline_inputs import tell_inputs
from lingvo_pipe.training.train_step import TrainStep

NUM_STEPS = 20


def _train(model: str, pipeline: dict[str, Any]) -> str:
    params = model_registry.GetParams(model, "Train")
    params.task.pipeline.Set(**pipeline)
    given = params.input.Instantiate()
    tell_inputs(params.task, given)
    step = TrainStep(params.task.Instantiate())
    for batch in itertools.islice(given.TrainBatches(), NUM_STEPS):
        step(batch)
    left = hashlib.sha256()
    for path, variable in sorted(step.State().items()):
        left.update(path.encode())
        left.update(variable.numpy().tobytes())
    return left.hexdigest()


if __name__ == "__main__":
    workers, model, runs = map(json.loads, sys.argv[1:])
    names = dict.fromkeys(name for pipeline in runs for name in pipeline["devices"])
    initialize_devices(list(names), Cluster(tuple(workers)))
    print(json.dumps([_train(model, pipeline) for pipeline in runs]))
