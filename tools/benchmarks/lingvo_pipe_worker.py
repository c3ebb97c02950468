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
from collections.abc import Sequence

import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.layers.local_loss import LocalLossLayer
from lingvo_pipe.pipeline.devices.cluster_spec import Cluster
from lingvo_pipe.pipeline.devices.stage_devices import initialize_devices
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from tools.benchmarks.configuration import Configuration
from tools.benchmarks.exchange import Report, Request
from tools.benchmarks.loopback import loopback_bytes
from tools.benchmarks.other_programs import OtherPrograms
from tools.benchmarks.prediction import prediction_errors
from tools.benchmarks.train_steps import bytes_by_shapes, peak_bytes, train_steps
from tools.benchmarks.transformer_layer import TransformerLayer
from tools.benchmarks.turns import Turns


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
    cluster = Cluster(tuple(workers)) if workers else None
    layer = _pipeline(configuration, initialize_devices(places, cluster))
    batch = tf.constant(configuration.workload.batch())
    num_steps = configuration.steps_per_call

    before = time.perf_counter()
    step = train_steps(layer, batch, num_steps)
    loss = float(step().loss)
    start_seconds = time.perf_counter() - before

    others = OtherPrograms(request.cores, workers.values())
    step_seconds, times, sent = [], [], []
    for _ in range(request.num_steps):
        turns.wait()
        with others:
            sent_before, before = loopback_bytes(), time.perf_counter()
            result = step()
            loss = float(result.loss)
            step_seconds.append((time.perf_counter() - before) / num_steps)
            sent.append((loopback_bytes() - sent_before) // num_steps)
        times.append([of_device.numpy() for of_device in result.times])
    turns.wait()
    return Report(
        start_seconds,
        step_seconds,
        peak_bytes(layer, batch) if request.with_peak else None,
        loss,
        others.num_cores(),
        prediction_errors(layer, times) if configuration.is_predicted else [],
        bytes_by_shapes(layer, batch) if workers else None,
        sent if workers else [],
    )


def _pipeline(configuration: Configuration, devices: Sequence[str]) -> PipeliningLayer:
    workload, recompute = configuration.workload, configuration.recompute
    p = PipeliningLayer.Params().Set(
        name="pipeline",
        cell_tpl=_cells(configuration),
        splits=_splits(configuration),
        num_micro_batches=configuration.num_micro_batches,
        schedule=configuration.schedule,
        stages_per_device=configuration.stages_per_device,
        devices=devices,
        recompute=recompute if isinstance(recompute, str) else list(recompute),
    )
    layer = p.Instantiate()
    layers = [cell for cell in layer.cells if isinstance(cell, TransformerLayer)]
    for i, cell in enumerate(layers):
        for name, value in workload.weights(i).items():
            cell.vars[name].assign(value)
    return layer


def _cells(configuration: Configuration) -> list[InstantiableParams]:
    """The layers, and behind each block but the last its loss."""
    workload = configuration.workload
    cells: list[InstantiableParams] = []
    for i in range(workload.num_layers):
        if i in _block_ends(configuration):
            dim = workload.model_dim
            head = FCLayer.Params().Set(input_dim=dim, output_dim=dim)
            cells.append(LocalLossLayer.Params().Set(head=head))
        cells.append(TransformerLayer.Params().Set(workload=workload))
    return cells


def _splits(configuration: Configuration) -> list[int]:
    """The stages' ends; a block's loss is in the stage of its last layer."""
    num_layers, num_stages = configuration.workload.num_layers, configuration.num_stages
    ends = [num_layers * (k + 1) // num_stages for k in range(num_stages)]
    blocks = _block_ends(configuration)
    return [end + sum(block <= end for block in blocks) for end in ends]


def _block_ends(configuration: Configuration) -> list[int]:
    num_layers, num_blocks = configuration.workload.num_layers, configuration.num_blocks
    return [num_layers * k // num_blocks for k in range(1, num_blocks)]


if __name__ == "__main__":
    main()
