"""Decides which layers are identical, so that one trace computes all of them.

Identical layers have equal params except for their names, equal attributes, the same
added functions, and the same trained variables and accumulators. The same holds for all
layers below them, whose names are equal too. FProp may also read a layer's path or
name, because `place_reads` records such reads. FProp must not depend on the layer's
object, for instance on its index in a list outside the layer, because this is not
detected.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Container, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from lingvo_pipe.core.nests import map_present
from lingvo_pipe.hyperparams import Params
from lingvo_pipe.layers.core.accumulators import Accumulator
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.core.place_reads import PlaceReads
from lingvo_pipe.pipeline.tracing.cut import captured_constants
from lingvo_pipe.pipeline.tracing.trace import Trace


class LayerIdentity:
    """Everything that a forward pass depends on, except values of theta and inputs.

    Attributes:
        reads: the layers whose path or name FProp reads, empty until FProp is traced.
    """

    def __init__(self, layer: BaseLayer, specs: Any):
        """Initializes the identity. `specs` are specs of all of FProp's arguments."""
        self.reads = PlaceReads()
        self._layer = layer
        self._specs = repr(specs)
        self._params = [below.params for below in layer.Descendants()]
        self._functions = [below.fns for below in layer.Descendants()]
        self._attributes = list(map(_attributes, layer.Descendants()))

    def matches(self, other: LayerIdentity) -> bool:
        """Returns whether the layers are identical, apart from paths and names."""
        return (
            self._specs == other._specs
            and self._functions == other._functions
            and _same_params(self._params[0], other._params[0], {"name"})
            and _same(self._params[1:], other._params[1:])
            and _same(self._attributes, other._attributes)
        )

    def has_same_reads(self, other: LayerIdentity) -> bool:
        """Returns whether all paths and names that FProp reads are the same in `other`.

        FProp of this layer has been traced, so `reads` is known.
        """
        layers, other_layers = (list(x._layer.Descendants()) for x in (self, other))
        return all(
            layers[i].path == other_layers[i].path for i in self.reads.paths
        ) and all(
            layers[i].params.name == other_layers[i].params.name
            for i in self.reads.names
        )


# Attributes of every layer on which its trace depends.
_TRACED = {"_trained", "_accumulators", "_accumulator_objects"}


def _attributes(layer: BaseLayer) -> dict[str, Any]:
    return {k: v for k, v in vars(layer).items() if k not in _common_attributes()}


@functools.cache
def _common_attributes() -> frozenset[str]:
    common = vars(BaseLayer.Params().Set(name="any").Instantiate())
    return frozenset(common) - _TRACED


def _same_params(a: Params, b: Params, skipped: Container[str] = ()) -> bool:
    pairs = zip(a.IterParams(), b.IterParams(), strict=False)
    return len(a) == len(b) and all(
        name == other_name and (name in skipped or _same(value, other_value))
        for (name, value), (other_name, other_value) in pairs
    )


def _same(a: Any, b: Any) -> bool:
    """Returns whether two values and all their parts are equal and of equal types."""
    if a is b:
        return True
    if type(a) is not type(b) or isinstance(a, (tf.Tensor, tf.Variable)):
        return False  # Variables of equal values may become different.
    if isinstance(a, BaseLayer):  # A child, which `Descendants` compares.
        return a.params.name == b.params.name
    if isinstance(a, Accumulator):
        return _same({**vars(a), "_layer": None}, {**vars(b), "_layer": None})
    if isinstance(a, Params):
        return _same_params(a, b)
    if isinstance(a, (float, complex)):  # NaN equals NaN, and 0.0 is not -0.0.
        return repr(a) == repr(b)
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, Mapping):
        return _same(list(a), list(b)) and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, (set, frozenset)):
        return _same(sorted(a, key=repr), sorted(b, key=repr))
    if dataclasses.is_dataclass(a) and not isinstance(a, type):
        fields = [field.name for field in dataclasses.fields(a)]
        return all(_same(getattr(a, x), getattr(b, x)) for x in fields)
    try:
        return bool(a == b)
    except Exception:
        return False


# Attributes of operations that hold only names: of gradient functions, whose operations
# the trace has anyway, and of colocated operations.
_NAMING = ("_gradient_op_type", "_class")

# Fields of a trace without tensors.
_FLAGS = ("draws", "uses", "wants")


def graph_key(trace: Trace) -> str | None:
    """Returns a digest of a trace, or None if the trace captured values.

    Equal digests prove that traces compute the same: the traces have the same
    operations in the same order, apart from names. Operations that call functions of
    their own, such as branches, make digests differ.
    """
    if captured_constants(trace.graph):
        return None
    operations = trace.graph.get_operations()
    numbers = {op: number for number, op in enumerate(operations)}

    def position(x: Any) -> tuple[int, int]:
        if isinstance(x, tf.Operation):
            return numbers[x], -1
        return numbers[x.op], x.value_index

    of_operations = [
        (
            op.type,
            op.device,
            sorted(_graph_attributes(op).items()),
            [position(x) for x in op.inputs],
            [numbers[before] for before in op.control_inputs],
        )
        for op in operations
    ]
    of_tensors = [
        (name, value if name in _FLAGS else map_present(position, value))
        for name, value in vars(trace).items()
        if name != "graph"
    ]
    return hashlib.sha256(repr((of_operations, of_tensors)).encode()).hexdigest()


def _graph_attributes(op: tf.Operation) -> dict[str, bytes]:
    return {
        name: hashlib.sha256(value.SerializeToString(deterministic=True)).digest()
        for name, value in op.node_def.attr.items()
        if name not in _NAMING
    }
