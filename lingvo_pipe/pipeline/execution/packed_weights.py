"""Packs of weights, which a pipeline's function takes instead of thousands of tensors.

    variables --read--.
                       +--> a pack per layer --> a pack per stage and owner
    tensors   --pack--'

One call reads all variables of a stage, and identical stages call the same function.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from lingvo_pipe.core.nests import map_present
from lingvo_pipe.pipeline.devices.stage_devices import loop_device
from lingvo_pipe.pipeline.execution.pipeline_spec import PipelineSpec, by_stage
from lingvo_pipe.pipeline.execution.shared_updates import SharedUpdates
from lingvo_pipe.pipeline.loops.packed_phases import cut_list
from lingvo_pipe.pipeline.loops.stage import Stage
from lingvo_pipe.pipeline.loops.stage_update import read_variable
from lingvo_pipe.pipeline.loops.stash import Pack, PackOfPacks


class PackedWeights:
    """A packing of a pipeline's weights. `spec` has the specs of the packs."""

    def __init__(self, spec: PipelineSpec, stages: Sequence[Stage]):
        self._replicas = [
            list(map(loop_device, devices)) for devices in spec.layout.replicas
        ]
        self._owners = list(map(loop_device, spec.layout.owners))
        self._functions = [layer.functions for s in stages for layer in s.layers]
        self._stages = by_stage(range(len(self._owners)), spec.layout.boundaries)
        self._loss: list[Pack] = [[]] if spec.loss_fn else []
        owned: dict[tuple[int, str], list[int]] = {}
        for k, layers in enumerate(self._stages):
            for i in layers:
                owned.setdefault((k, self._owners[i]), []).append(i)
        self._groups = [
            (
                owner,
                owned_layers,
                PackOfPacks([self._functions[i].weights.spec for i in owned_layers]),
            )
            for (_, owner), owned_layers in owned.items()
        ]
        self._readers = SharedUpdates()
        self.spec = [packing.spec for *_, packing in self._groups]

    def pack(self, thetas: Sequence[Any]) -> list[Pack]:
        """Packs the weights of all layers, on the weights' owners. Stops gradients.

        `thetas` are structures of tensors or of variables. Variables are read. The
        result has a pack for each stage and owner.
        """
        packs = []
        for owner, layers, packing in self._groups:
            with tf.device(owner):
                weights = [tf.nest.flatten(thetas[i]) for i in layers]
                pack = self._packed(layers, weights, packing)
                packs.append(map_present(tf.stop_gradient, pack))
        return packs

    def by_replica(self, packs: Sequence[Pack]) -> list[list[list[Pack]]]:
        """Copies packs to all replicas. Returns them by replica, stage and layer."""
        pack_of_layer: dict[int, Pack] = {}
        for (owner, layers, packing), pack in zip(self._groups, packs, strict=True):
            with tf.device(owner):
                pack_of_layer.update(zip(layers, packing.unpack(pack), strict=True))
        last = len(self._stages) - 1
        return [
            [
                [self._copied(i, pack_of_layer[i], device) for i in layers]
                + (self._loss if k == last else [])
                for k, (layers, device) in enumerate(
                    zip(self._stages, devices, strict=True)
                )
            ]
            for devices in self._replicas
        ]

    def _packed(
        self, layers: Sequence[int], weights: Sequence[list[Any]], packing: PackOfPacks
    ) -> Pack:
        """Returns the pack of the layers' weights. Reads all variables in one call."""
        functions = [self._functions[i] for i in layers]

        def pack(by_layer: Sequence[list[Any]]) -> Pack:
            pairs = zip(functions, by_layer, strict=True)
            return packing.pack([phases.pack_weights(x) for phases, x in pairs])

        flat = [x for layer_weights in weights for x in layer_weights]
        if not all(isinstance(x, tf.Variable) for x in flat):
            return pack(weights)
        sizes = tuple(map(len, weights))

        def read(_: list[tf.Tensor], variables: list[tf.Variable]) -> Pack:
            # A tied weight is read once: the layers of a stage share its copy.
            values = {id(x.handle): read_variable(x) for x in variables}
            tensors = [values[id(x.handle)] for x in variables]
            return pack(cut_list(tensors, *sizes)[:-1])

        return self._readers.call((sizes, *functions), read, [], flat)

    def _copied(self, layer: int, pack: Pack, device: str) -> Pack:
        functions = self._functions[layer]
        if device == self._owners[layer]:
            return pack
        with tf.device(self._owners[layer]):
            weights = functions.weights.unpack(pack)
        with tf.device(device):
            return functions.weights.pack(weights)
