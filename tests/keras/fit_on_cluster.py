"""Trains a Keras model on devices of this process and of workers, in turn.

Arguments are the workers' addresses and a list of options of PipelinedModel, as JSON.
Prints a hash of the variables, the optimizer's and the history for each of these.
"""

from __future__ import annotations

import hashlib
import json
import sys
from typing import Any

import keras

from lingvo_pipe.keras.pipelined_model import PipelinedModel
from lingvo_pipe.pipeline.devices.cluster_spec import Cluster
from lingvo_pipe.pipeline.devices.stage_devices import initialize_devices
from tests.keras.example_models import MODELS


def _train(name: str, options: dict[str, Any]) -> str:
    keras.utils.set_random_seed(3)
    example = MODELS[name]()
    trained: Any = PipelinedModel(example.model, **options)
    trained.compile("adam", loss=example.loss, metrics=["accuracy"])
    fit = trained.fit(
        example.x, example.y, batch_size=6, epochs=2, shuffle=False, verbose=0
    )
    digest = hashlib.sha256(repr(fit.history).encode())
    for v in (*example.model.variables, *trained.optimizer.variables):
        digest.update(v.numpy().tobytes())
    digest.update(trained.predict(example.x, verbose=0).tobytes())
    return digest.hexdigest()


if __name__ == "__main__":
    workers, model, runs = map(json.loads, sys.argv[1:])
    names = dict.fromkeys(name for options in runs for name in options["devices"])
    initialize_devices(list(names), Cluster(tuple(workers)))
    print(json.dumps([_train(model, options) for options in runs]))
