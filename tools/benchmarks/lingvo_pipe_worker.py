"""Measures lingvo_pipe, or a plain tf.function, in a process of its own.

    python -m tools.benchmarks.lingvo_pipe_worker REQUEST WORKERS

Runs steps in turns, and answers with a `Report` (see `exchange`). WORKERS is a JSON
object that maps addresses of the stages' worker processes to process ids. {} puts the
stages on devices of this process.
"""

import json
import os
import sys
import time
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from lingvo_pipe.pipeline.devices.cluster_spec import Cluster
from lingvo_pipe.pipeline.devices.stage_devices import initialize_devices
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from lingvo_pipe.training.profiling.step_profile import measured_timeline, predict
from tools.benchmarks import lingvo_pipe_model as model
from tools.benchmarks.exchange import Report, Request, Turns, to_json
from tools.benchmarks.plain_tensorflow import plain_step
from tools.benchmarks.system_load import OtherPrograms, loopback_bytes

# The number of earlier steps from which the trainer's profile predicts a step, too.
_NUM_EARLIER_STEPS = 5


def main() -> None:
    """Measures what the first argument requests, and answers with a report."""
    request, workers = Request.from_json(sys.argv[1]), json.loads(sys.argv[2])
    configuration, turns = request.configuration, Turns()
    os.sched_setaffinity(0, request.cores)
    num_steps = configuration.steps_per_call
    batch, layer = None, None
    if configuration.system == "tensorflow":
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)
        step = plain_step(configuration, "cpu:0")
    else:
        names = [f"worker:{i}/cpu:0" for i in range(len(workers))]
        names = names or [f"cpu:{i}" for i in range(configuration.num_devices)]
        cluster = Cluster(tuple(workers)) if workers else None
        layer = model.make_pipeline(configuration, initialize_devices(names, cluster))
        batch = tf.constant(configuration.workload.batch())

    start = time.perf_counter()
    if layer is not None:
        step = model.train_steps(layer, batch, num_steps)
    loss = float(step().loss)
    start_seconds = time.perf_counter() - start

    other_programs = OtherPrograms(request.cores, workers.values())
    step_seconds, times, sent = [], [], []
    for _ in range(request.num_steps):
        turns.wait()
        with other_programs:
            sent_before, start = loopback_bytes(), time.perf_counter()
            result = step()
            loss = float(result.loss)
            step_seconds.append((time.perf_counter() - start) / num_steps)
            sent.append((loopback_bytes() - sent_before) // num_steps)
        times.append([of_device.numpy() for of_device in result.times])
    turns.wait()
    report = Report(
        start_seconds,
        step_seconds,
        layer.PeakBytes(*model.inputs_of(batch), model.mean_loss)
        if layer and request.with_peak
        else None,
        loss,
        other_programs.num_cores(),
        prediction_errors(layer, times) if layer and configuration.is_predicted else [],
        model.bytes_by_shapes(layer, batch) if layer and workers else None,
        sent if workers else [],
    )
    turns.answer(to_json(report))


def prediction_errors(
    pipeline: PipeliningLayer, times: Sequence[Sequence[np.ndarray]]
) -> list[float]:
    """Returns relative errors of the predicted times of all steps but the first.

    Each is |predicted - measured| / measured. A step's time is from the start of its
    first operation to the end of its last. The prediction uses only earlier steps.
    `times` has the times of consecutive steps, from `ComputeGradients`.

    Raises:
        ValueError: if the times contradict each other, as after the clock was set.
    """
    steps = [measured_timeline(pipeline.schedule, of_step) for of_step in times]
    errors = []
    for i, step in enumerate(steps[1:], start=1):
        earlier = steps[max(0, i - _NUM_EARLIER_STEPS) : i]
        predicted = predict(earlier, step.schedule).step_seconds
        errors.append(abs(predicted - step.step_seconds) / step.step_seconds)
    return errors


if __name__ == "__main__":
    main()
