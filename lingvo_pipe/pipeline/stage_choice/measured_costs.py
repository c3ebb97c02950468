"""Measured times of cells: forward and backward, one micro-batch at a time.

Cells run one after another, as in a stage:

    forward     c0 | c1 | c2 | c3
    backward                   c3 | c2 | c1 | c0

A cell that ran repeatedly by itself would find more of its data in the caches.
The timed functions are the ones that a stage's loop calls, including the stash and the
gradient accumulators. The clock is the device's. Weights and inputs are synthetic,
because times rarely depend on them. Equal cells share functions, and are measured only
in the first run that has one of them.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf

from lingvo_pipe.pipeline.debug.diagnosis import naming
from lingvo_pipe.pipeline.devices.device_names import device_name
from lingvo_pipe.pipeline.devices.stage_devices import (
    disable_graph_optimizer,
    loop_device,
)
from lingvo_pipe.pipeline.loops.packed_phases import PackedPhases
from lingvo_pipe.pipeline.loops.stage import Stage, StageInputs, stages_of_one
from lingvo_pipe.pipeline.loops.stash import Pack, StashSlot
from lingvo_pipe.pipeline.loops.traced_layers import PlacedLayer, Values
from lingvo_pipe.pipeline.loops.while_loop import timestamp
from lingvo_pipe.pipeline.memory.workspace import num_bytes
from lingvo_pipe.pipeline.schedules.slots import StashKind
from lingvo_pipe.pipeline.splitting.cell_costs import CellSeconds
from lingvo_pipe.pipeline.tracing.trace import CallContext, is_differentiable

# Cells run for _SECONDS each, but within these numbers of runs: long cells run less
# often, because their times hardly vary.
_MIN_RUNS = 5
_MAX_RUNS = 100
_SECONDS = 0.3  # For each cell.
# The most cells that run after one another, and the most bytes that their weights,
# gradients and residuals take.
_MAX_CELLS = 16
_MAX_BYTES = 1 << 30


def measured_seconds(
    layers: Sequence[PlacedLayer], specs: Mapping[int, tf.TensorSpec], device: str
) -> list[CellSeconds]:
    """Measures the seconds that cells take on a device: medians over several runs.

    `specs` are the specs of the values between the cells, by the values' numbers.

    Raises:
        tf.errors.OpError: if a cell does not run on synthetic inputs.
    """
    disable_graph_optimizer()
    medians: dict[PackedPhases, CellSeconds] = {}
    for start, end in _runs(layers):
        measured = layers[start:end]
        if all(layer.functions in medians for layer in measured):
            continue
        seconds_of_layers = _measure(measured, start, specs, loop_device(device))
        by_functions: dict[PackedPhases, list[CellSeconds]] = {}
        for layer, seconds in zip(measured, seconds_of_layers, strict=True):
            by_functions.setdefault(layer.functions, []).append(seconds)
        for functions, samples in by_functions.items():
            median = CellSeconds(*np.median(samples, axis=0).tolist())
            medians.setdefault(functions, median)
    return [medians[layer.functions] for layer in layers]


def _runs(layers: Sequence[PlacedLayer]) -> Iterator[tuple[int, int]]:
    """Yields (start, end) of each group of layers that are timed in one run."""
    start, held = 0, 0
    for i, layer in enumerate(layers):
        phases = layer.functions.phases
        held += num_bytes([*phases.weights, *phases.weights, *phases.residuals])
        if i > start and (held > _MAX_BYTES or i - start == _MAX_CELLS):
            yield start, i
            start, held = i, 0
    yield start, len(layers)


def _measure(
    layers: Sequence[PlacedLayer],
    first: int,
    specs: Mapping[int, tf.TensorSpec],
    device: str,
) -> list[CellSeconds]:
    """Times layers in one run, or each layer by itself if they cannot run together."""
    if len(layers) == 1:
        with naming(f"measuring cell {first}"):
            return _measure_run(layers, specs, device)
    try:
        return _measure_run(layers, specs, device)
    except tf.errors.OpError:
        alone = (_measure([x], first + i, specs, device) for i, x in enumerate(layers))
        return list(itertools.chain.from_iterable(alone))


def _measure_run(
    layers: Sequence[PlacedLayer], specs: Mapping[int, tf.TensorSpec], device: str
) -> list[CellSeconds]:
    outputs = {value for layer in layers for value in layer.values.made}
    incoming = {value for layer in layers for value in layer.used} - outputs
    inner = {value for layer in layers for value in layer.values.gives}
    seeds = {v for v in outputs - inner if is_differentiable(specs[v])}
    with tf.device(device):
        weights = [list(map(_weight, x.functions.phases.weights)) for x in layers]
        values = {v: _synthetic(specs[v]) for v in sorted(incoming)}
        gradients = {v: _synthetic(specs[v]) for v in sorted(seeds)}
    run = tf.function(functools.partial(_timed, layers, device), autograph=False)
    run(weights, values, gradients)  # Builds, allocates, and compiles where XLA does.
    times: list[np.ndarray] = []
    start = time.monotonic()
    while len(times) < _MIN_RUNS or (
        len(times) < _MAX_RUNS and time.monotonic() - start < _SECONDS * len(layers)
    ):
        times.append(run(weights, values, gradients).numpy())
    return [CellSeconds(*seconds) for seconds in np.median(times, axis=0).tolist()]


def _timed(
    layers: Sequence[PlacedLayer],
    device: str,
    weights: list[list[tf.Tensor]],
    values: Values,
    gradients: Values,
) -> tf.Tensor:
    """Builds one run: all cells forward, then all cells backward, each pass timed.

    Returns `[cells, 2]` float64 seconds of the forward and backward passes.
    """
    with tf.device(device):
        context = CallContext(
            step=tf.constant(0, tf.int64),
            first_example=tf.constant(0, tf.int64),
            loss_scale=tf.constant(1.0, tf.float64),
        )
        values, gradients = dict(values), dict(gradients)
        cells = [
            _Cell.empty(stage, layer_weights, context)
            for stage, layer_weights in zip(stages_of_one(layers), weights, strict=True)
        ]
        forward = [_time_after([x for cell in cells for x in cell.state], device)]
        for cell in cells:
            with tf.control_dependencies([forward[-1]]):
                results = cell.forward(values)
            forward.append(_time_after(results, device))
        backward = [forward[-1]]
        for cell in reversed(cells):
            with tf.control_dependencies([backward[-1]]):
                results = cell.backward(gradients)
            backward.append(_time_after(results, device))
        passes = [
            [b - a for a, b in itertools.pairwise(x)] for x in (forward, backward)
        ]
        return tf.stack([passes[0], passes[1][::-1]], axis=1)


@dataclasses.dataclass
class _Cell:
    stage: Stage
    inputs: StageInputs
    sums: Pack
    accumulators: Pack
    slot: StashSlot

    @classmethod
    def empty(
        cls, stage: Stage, weights: list[tf.Tensor], context: CallContext
    ) -> _Cell:
        stash = stage.empty_stash(StashKind.RESIDUALS, tf.constant(1))
        return cls(
            stage=stage,
            inputs=StageInputs(
                stage.pack_weights([weights]), stage.pack_path_hashes(), context
            ),
            sums=stage.zero_sums(),
            accumulators=stage.zero_gradients(),
            slot=StashSlot(stash, tf.constant(0)),
        )

    @property
    def state(self) -> list[tf.Tensor]:
        packs = self.inputs.weights, self.sums, self.accumulators, self.slot.stash
        return list(itertools.chain.from_iterable(packs))

    def forward(self, values: Values) -> list[tf.Tensor]:
        """Adds the outputs to `values`. Returns all tensors that the pass computes."""
        (layer,) = self.stage.layers
        outputs, self.sums, stash = self.stage.forward(
            self.inputs, values, self.sums, self.slot, wanted=layer.values.made
        )
        values.update(outputs)
        self.slot = StashSlot(stash, self.slot.slot)
        return [*outputs.values(), *self.stage.unpack_sums(self.sums)[0], *stash]

    def backward(self, gradients: Values) -> list[tf.Tensor]:
        """Adds input gradients to `gradients`. Returns all tensors of the pass."""
        (layer,) = self.stage.layers
        totals, stash, self.accumulators = self.stage.backward(
            self.inputs,
            self.slot,
            gradients,
            self.accumulators,
            wanted=layer.given_gradients,
        )
        gradients.update(totals)
        (accumulators,) = self.stage.gradients.unpack(self.accumulators)
        of_weights = layer.functions.gradients.unpack(accumulators)
        return [*totals.values(), *of_weights, *stash]


def _time_after(tensors: Iterable[tf.Tensor], device: str) -> tf.Tensor:
    """Returns the time when all tensors are computed.

    An accelerator returns tensors before it has computed them, so the host fetches the
    first number of each tensor.
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


def _weight(spec: tf.TensorSpec) -> tf.Tensor:
    """Returns a synthetic weight, so small that cells hardly amplify values."""
    num_inputs = math.prod(spec.shape[:-1])
    scale = 2 / num_inputs if spec.shape.rank > 1 and spec.dtype.is_floating else 1
    return _synthetic(spec) * tf.cast(scale, spec.dtype)


def _synthetic(spec: tf.TensorSpec) -> tf.Tensor:
    """Returns numbers below 1 or, for integers, zeros, which are valid as indices."""
    if spec.dtype.is_floating:
        seed = tf.constant([0, 0])
        drawn = tf.random.stateless_uniform(spec.shape, seed, dtype=tf.float32)
        return tf.cast(drawn, spec.dtype)
    return tf.zeros(spec.shape, spec.dtype)
