"""Measured times of cells: forward and backward, one micro-batch at a time.

The timed functions are those that a stage's loop calls, stash and gradient accumulators
included; the clock is the device's. Weights and inputs are synthetic, because times
rarely depend on them. Cells that share functions are timed once.
"""

import functools
import time
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from lingvo_pipe.pipeline.debug.diagnosis import naming
from lingvo_pipe.pipeline.devices.device_names import device_name
from lingvo_pipe.pipeline.devices.stage_devices import (
    disable_graph_optimizer,
    loop_device,
)
from lingvo_pipe.pipeline.loops.packed_phases import PackedPhases
from lingvo_pipe.pipeline.loops.stage_call import PhaseInputs, StageCall, Values
from lingvo_pipe.pipeline.loops.stash import StashSlot
from lingvo_pipe.pipeline.loops.while_loop import timestamp
from lingvo_pipe.pipeline.splitting.cell_costs import CellSeconds
from lingvo_pipe.pipeline.tracing.trace import CallContext, is_differentiable

# Short cells run often, for _SECONDS; the times of long cells hardly vary.
_MIN_RUNS = 5
_MAX_RUNS = 100
_SECONDS = 0.3


def measured_seconds(
    calls: Sequence[StageCall], specs: Mapping[int, tf.TensorSpec], device: str
) -> list[CellSeconds]:
    """Times cells on a device; returns medians over several runs.

    `specs` are of the values between the cells, by number. Raises tf.errors.OpError,
    naming the cell, if one does not run on synthetic inputs.
    """
    disable_graph_optimizer()
    known: dict[PackedPhases, CellSeconds] = {}
    for i, call in enumerate(calls):
        if call.functions not in known:
            with naming(f"measuring cell {i}"):
                known[call.functions] = _measure(call, specs, loop_device(device))
    return [known[call.functions] for call in calls]


def _measure(
    call: StageCall, specs: Mapping[int, tf.TensorSpec], device: str
) -> CellSeconds:
    differentiable = [v for v in call.call.made if is_differentiable(specs[v])]
    with tf.device(device):
        weights = list(map(_synthetic, call.functions.phases.weights))
        values = {v: _synthetic(specs[v]) for v in call.used}
        gradients = {v: _synthetic(specs[v]) for v in differentiable}
    run = tf.function(functools.partial(_timed, call, device), autograph=False)
    run(weights, values, gradients)  # Builds, allocates, and compiles where XLA does.
    times: list[np.ndarray] = []
    start = time.monotonic()
    while len(times) < _MIN_RUNS or (
        len(times) < _MAX_RUNS and time.monotonic() - start < _SECONDS
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
    """Returns `[2]` float64 seconds of a forward pass and of its backward pass."""
    functions = call.functions
    with tf.device(device):
        context = CallContext(
            step=tf.constant(0, tf.int64),
            first_example=tf.constant(0, tf.int64),
            loss_scale=tf.constant(1.0, tf.float64),
        )
        values, gradients = dict(values), dict(gradients)
        packed = functions.pack_weights(*weights)
        sums, accumulators = functions.zero_sums(), functions.zero_gradients()
        slot = StashSlot(functions.empty_residuals(tf.constant(1)), tf.constant(0))
        start = _time_after([*packed, *sums, *accumulators, *slot.stash], device)
        with tf.control_dependencies([start]):
            inputs = PhaseInputs(packed, context)
            sums, stash = call.forward(inputs, values, sums, slot)
        made = [values[v] for v in call.call.made]
        middle = _time_after([*made, *functions.unpack_sums(*sums), *stash], device)
        with tf.control_dependencies([middle]):
            slot = StashSlot(stash, slot.slot)
            stash, accumulators = call.backward(inputs, slot, gradients, accumulators)
        given = [gradients[call.call.args[i]] for i in functions.phases.gives]
        accumulators = functions.unpack_gradients(*accumulators)
        end = _time_after([*given, *accumulators, *stash], device)
        return tf.stack([middle - start, end - middle])


def _time_after(tensors: Iterable[tf.Tensor], device: str) -> tf.Tensor:
    """Returns the time when all tensors are computed.

    An accelerator returns results before it has computed them, so the host fetches
    one number of each.
    """
    name = device_name(device)

    def computed(x: tf.Tensor) -> tf.Tensor:
        if name.kind == "CPU" or x.dtype == tf.variant:
            return x
        first = tf.reshape(x, [-1])[:1]
        with tf.device(name.host.full):
            return tf.identity(first)

    with tf.control_dependencies(list(map(computed, tensors))):
        return timestamp(device)


def _synthetic(spec: tf.TensorSpec) -> tf.Tensor:
    """Returns a tensor of numbers below 1, or of zeros, which are valid indices."""
    if spec.dtype.is_floating:
        seed = tf.constant([0, 0])
        drawn = tf.random.stateless_uniform(spec.shape, seed, dtype=tf.float32)
        return tf.cast(drawn, spec.dtype)
    return tf.zeros(spec.shape, spec.dtype)
