"""Runs batch shards on replicas, and sums their gradients on the weights' owners.

    micro-batches     0 1 2 3 | 4 5 6 7     M = 8, two batch shards, R = 2 replicas
    devices           a b c   | d e f       K = 3 each
    gradients         on a    + on d        for stage 0; summed on a or d, the owner

A batch shard is a run of consecutive micro-batches that one replica processes. Replicas
run side by side. Each weight lives on one device, its owner. The replicas own the cells
of a stage in turn. A step starts by copying the weights to the other replicas. It ends
when the owners have received the gradient accumulators and summed them, in the order of
the batch shards.

So the results depend on the number of batch shards, and not on the number of replicas:
a replica with several shards runs them one after another.
"""

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from lingvo_pipe.pipeline.devices.stage_devices import loop_device
from lingvo_pipe.pipeline.execution.pipeline_spec import PipelineSpec, by_stage
from lingvo_pipe.pipeline.loops.loop_graph import LoopGraph
from lingvo_pipe.pipeline.loops.run_data import LoopArguments, LoopResults, StageResults
from lingvo_pipe.pipeline.loops.stash import Pack
from lingvo_pipe.pipeline.loops.traced_layers import PlacedLayer
from lingvo_pipe.pipeline.memory.call_bytes import CallBytes

# Bytes by names of the sending and the receiving device.
Bytes = Mapping[tuple[str, str], int]


def emit_batch_shards(
    loop_graphs: Sequence[LoopGraph],
    spec: PipelineSpec,
    arguments: LoopArguments,
    weights_by_replica: Sequence[Any],
) -> list[LoopResults]:
    """Adds a run of each batch shard to the graph. Returns the results of each run.

    `loop_graphs` and `weights_by_replica` have one item for each replica. `arguments`
    are for all micro-batches.
    """
    if spec.layout.num_batch_shards == 1:
        return [loop_graphs[0].emit(arguments._replace(weights=weights_by_replica[0]))]
    shards: list[LoopResults] = []
    for loop_graph, weights in zip(loop_graphs, weights_by_replica, strict=True):
        after: Sequence[tf.Tensor] = ()
        for _ in range(spec.layout.shards_per_replica):
            with tf.device(spec.inputs_device):
                of_shard = _cut(arguments, len(shards), spec.layout.num_batch_shards)
            of_shard = of_shard._replace(weights=weights)
            shards.append(loop_graph.emit(of_shard, after))
            after = shards[-1].times
    return shards


def join_batch_shards(shards: Sequence[LoopResults], spec: PipelineSpec) -> LoopResults:
    """Joins the results of `emit_batch_shards`.

    With several shards the result has no gradients of weights, because the weights'
    owners sum these gradients. The result has no notes either. The times are by device,
    replica by replica.
    """
    if len(shards) == 1:
        return shards[0]
    add = functools.partial(tf.nest.map_structure, tf.add)
    stages, times = [], []
    for k, device in enumerate(map(loop_device, spec.layout.devices)):
        of_stage = [shard.stages[k] for shard in shards]
        with tf.device(device):
            stages.append(
                StageResults(
                    gradients=[],
                    sums=functools.reduce(add, [x.sums for x in of_stage]),
                    notes=[],
                    outputs=_concat([x.outputs for x in of_stage]),
                    input_gradients=_concat([x.input_gradients for x in of_stage]),
                )
            )
    for start in range(0, len(shards), spec.layout.shards_per_replica):
        of_replica = shards[start : start + spec.layout.shards_per_replica]
        for of_device in zip(*(shard.times for shard in of_replica), strict=True):
            with tf.device(of_device[0].device):
                times.append(tf.concat(of_device, 0))
    return LoopResults(stages, times)


def summed_accumulators(
    layer: PlacedLayer,
    accumulators: Sequence[Pack],
    spec: PipelineSpec,
    stage: int,
    owner: str,
) -> Pack:
    """Returns a layer's accumulators, summed on `owner` in the batch shards' order."""
    if len(accumulators) == 1:
        return accumulators[0]
    functions = layer.functions
    devices = [
        loop_device(devices[stage])
        for devices in spec.layout.replicas
        for _ in range(spec.layout.shards_per_replica)
    ]
    flat = []
    for packed, device in zip(accumulators, devices, strict=True):
        with tf.device(device):
            flat.append(functions.gradients.unpack(packed))
    with tf.device(owner):
        total = functions.gradients.pack(flat[0])
        for more in flat[1:]:
            total = functions.add_gradients(total, more)
    return total


def step_bytes(
    spec: PipelineSpec,
    hops: Sequence[Bytes],
    calls: Sequence[CallBytes],
    num_micro_batches: int,
) -> Bytes:
    """Returns the bytes that a training step of M micro-batches sends between devices.

    `hops` has, for each replica, the bytes that a micro-batch sends between stages.
    `calls` has the bytes of each layer's weights and accumulators.
    """
    sent: Counter[tuple[str, str]] = Counter()
    for between in hops:
        for pair, size in between.items():
            sent[pair] += size * num_micro_batches // len(spec.layout.replicas)
    owned = zip(calls, spec.layout.owners, strict=False)  # The loss has no owner.
    for stage, stage_calls in enumerate(by_stage(list(owned), spec.layout.boundaries)):
        for devices in spec.layout.replicas:
            for call, owner in stage_calls:
                away = devices[stage]
                sent[owner, away] += call.weights
                sent[away, owner] += call.accumulators * spec.layout.shards_per_replica
    return {pair: size for pair, size in sent.items() if size and len(set(pair)) > 1}


def _cut(arguments: LoopArguments, shard: int, num_batch_shards: int) -> LoopArguments:
    size = tf.shape(arguments.run.first_examples)[0] // num_batch_shards
    run = arguments.run.map_stacked(lambda x: x[shard * size : (shard + 1) * size])
    return arguments._replace(run=run)


def _concat(structures: Sequence[Any]) -> Any:
    return tf.nest.map_structure(lambda *shards: tf.concat(shards, 0), *structures)
