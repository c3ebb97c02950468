"""How long cells take, measured: forward and backward, one micro-batch at a time.

What is timed are the functions that a stage's loop calls, stash and totals included, by
the clock of the device. Weights and inputs are made up: times do not depend on them, as
a rule. Cells that share functions are timed once.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from lingvo_pipe.pipeline.devices.device_names import device_name
from lingvo_pipe.pipeline.devices.stage_devices import (
    loop_device,
    run_graphs_as_they_are,
)
from lingvo_pipe.pipeline.loops.clock import timestamp
from lingvo_pipe.pipeline.loops.packed_phases import PackedPhases
from lingvo_pipe.pipeline.loops.stage_call import StageCall, StashSlot, Values
from lingvo_pipe.pipeline.operation_errors import naming
from lingvo_pipe.pipeline.splitting.cell_seconds import CellSeconds
from lingvo_pipe.pipeline.tracing.trace import Surroundings, is_differentiable

# At least so many runs count, and more of a cell that is done soon; of a cell that
# takes a second the times hardly vary.
_LEAST_RUNS = 5
_MOST_RUNS = 100
_SECONDS = 0.3


def measured_seconds(
    calls: Sequence[StageCall], specs: Mapping[int, tf.TensorSpec], device: str
) -> list[CellSeconds]:
    """Times cells on a device: medians over several runs.

    Args:
        calls: of the cells.
        specs: of the values between them, by number.
        device: full name.

    Raises:
        tf.errors.OpError: naming the cell, if one can't be run on made-up inputs.
    """
    run_graphs_as_they_are()
    known: dict[PackedPhases, CellSeconds] = {}
    for i, call in enumerate(calls):
        if call.functions not in known:
            with naming(f"measuring cell {i}"):
                known[call.functions] = _measure(call, specs, loop_device(device))
    return [known[call.functions] for call in calls]


def _measure(
    call: StageCall, specs: Mapping[int, tf.TensorSpec], device: str
) -> CellSeconds:
    with tf.device(device):
        weights = list(map(_made_up, call.functions.phases.weights))
        values = {v: _made_up(specs[v]) for v in call.used}
        gradients = {
            v: _made_up(specs[v]) for v in call.call.made if is_differentiable(specs[v])
        }
    run = tf.function(lambda *given: _timed(call, device, *given), autograph=False)
    run(weights, values, gradients)  # Builds, allocates, and compiles where XLA does.
    times: list[np.ndarray] = []
    start = time.monotonic()
    while len(times) < _LEAST_RUNS or (
        len(times) < _MOST_RUNS and time.monotonic() - start < _SECONDS
    ):
        times.append(run(weights, values, gradients).numpy())
    return CellSeconds(*np.median(times, axis=0).tolist())


def _timed(
    call: StageCall,
    device: str,
    weights: list[tf.Tensor],
    values: Values,
    gradients: Values,
) -> tf.Tensor:
    """`[2]` float64: the seconds of a forward pass, and of the backward after it."""
    functions = call.functions
    with tf.device(device):
        told = Surroundings(
            step=tf.constant(0, tf.int64),
            first_example=tf.constant(0, tf.int64),
            loss_scale=tf.constant(1.0, tf.float64),
        )
        values, gradients = dict(values), dict(gradients)
        packed = functions.pack_weights(*weights)
        sums, totals = functions.zero_sums(), functions.zero_gradients()
        slot = StashSlot(functions.empty_residuals(tf.constant(1)), tf.constant(0))
        began = _time_after([*packed, *sums, *totals, *slot.stash], device)
        with tf.control_dependencies([began]):
            sums, stash = call.forward(packed, told, values, sums, slot)
        made = [values[v] for v in call.call.made]
        turned = _time_after([*made, *functions.unpack_sums(*sums), *stash], device)
        with tf.control_dependencies([turned]):
            slot = StashSlot(stash, slot.slot)
            stash, totals = call.backward(packed, told, slot, gradients, totals)
        given = [gradients[call.call.args[i]] for i in functions.phases.gives]
        totals = functions.unpack_gradients(*totals)
        ended = _time_after([*given, *totals, *stash], device)
        return tf.stack([turned - began, ended - turned])


def _time_after(tensors: Iterable[tf.Tensor], device: str) -> tf.Tensor:
    """The time at which these are there."""
    with tf.control_dependencies([_arrived(x, device) for x in tensors]):
        return timestamp(device)


def _arrived(x: tf.Tensor, device: str) -> tf.Tensor:
    """Something that is there no sooner than `x`.

    An accelerator hands over results before it has computed them; so a number of each
    is fetched from it.
    """
    name = device_name(device)
    if name.kind == "CPU" or x.dtype == tf.variant:
        return x
    first = tf.reshape(x, [-1])[:1]
    with tf.device(name.host.full):
        return tf.identity(first)


def _made_up(spec: tf.TensorSpec) -> tf.Tensor:
    """A tensor of that spec: numbers below 1; integers are 0, valid as indices."""
    if spec.dtype.is_floating:
        seed = tf.constant([0, 0])
        drawn = tf.random.stateless_uniform(spec.shape, seed, dtype=tf.float32)
        return tf.cast(drawn, spec.dtype)
    return tf.zeros(spec.shape, spec.dtype)
