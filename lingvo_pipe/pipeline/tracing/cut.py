r"""Cuts one traced graph into functions that run one after another.

    graph:   x --> a --> b --> y        forward:   x -> y, a     (a is stashed)
                   |           |
            dx <-- c <-------- dy       backward:  a, dy -> dx

A forward pass and its gradients are traced once, together. Each phase consists of the
operations that its targets need. A value that one phase computes and a later one uses
is stashed between them. The phases run the operations of the uncut graph, so the
results are the same, bit for bit, however the graph is cut.
"""

from collections.abc import (
    Callable,
    Collection,
    Container,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from types import MappingProxyType
from typing import Any

import tensorflow as tf

# Dtypes of tensors that have no values of their own.
REFERENCES = (tf.resource, tf.variant)


class CutGraph:
    """A traced graph, cut into phases."""

    def __init__(
        self,
        graph: tf.Graph,
        given: Sequence[tf.Tensor],
        weights: Sequence[tf.Tensor],
        targets: Sequence[Sequence[Any]],
        devices: Mapping[str, str] = MappingProxyType({}),
    ):
        """Cuts the graph.

        `given` are placeholders that are inputs of every phase. Of these, `weights` are
        the same for all runs. A value that follows only from weights is recomputed in
        each phase, not stashed. `targets` has the tensors and operations that each
        phase computes. Operations keep their devices, except those named in `devices`.
        """
        self._graph_def = graph.as_graph_def()
        self._nodes = {node.name: node for node in self._graph_def.node}
        for name, device in devices.items():
            self._nodes[name].device = device
        self._given = {x.ref(): x for x in given}
        constants = captured_constants(graph)
        for x, value in constants:
            self._nodes[x.op.name].CopyFrom(_constant_node(x.op.name, value))
        self._free = _consequences(graph, [*weights, *(x for x, _ in constants)])
        self._targets = targets
        self._phases: list[set[tf.Operation]] = []
        done: set[tf.Operation] = {x.op for x in given} | self._free
        for phase_targets in targets:
            phase = ancestors(_operations(phase_targets), done)
            self._phases.append({op for op in phase if op.type != "Placeholder"})
            done |= phase

    def needed(self, phase: int) -> list[tf.Tensor]:
        """Returns the tensors that a phase uses and that earlier phases compute."""
        operations = sorted(self._phases[phase], key=lambda op: op.name)
        used = [x for op in operations for x in op.inputs]
        # An earlier phase may have computed a target already.
        used += [x for x in self._targets[phase] if isinstance(x, tf.Tensor)]
        available = self._phases[phase] | self._free
        inputs_by_ref = {x.ref(): x for x in used if x.op not in available}
        return [x for ref, x in inputs_by_ref.items() if ref not in self._given]

    def operations(self, phase: int) -> Collection[tf.Operation]:
        """Returns the operations of a phase."""
        return self._phases[phase]

    def complete(self, phase: int, outputs: Sequence[tf.Tensor]) -> set[tf.Operation]:
        """Returns a phase's operations, with the recomputed ones that it needs."""
        sources = [x.op for op in self._phases[phase] for x in op.inputs]
        sources += [x.op for x in outputs]
        common_input_ops = {x.op for x in self._given.values()}
        free = ancestors((op for op in sources if op in self._free), common_input_ops)
        # Leaves out operations that are only control inputs of a constant.
        return self._phases[phase] | (free & self._free)

    def operations_for(
        self, phase: int, results: Iterable[Any]
    ) -> Collection[tf.Operation]:
        """Returns the operations of a phase that the given results need."""
        common_input_ops = {x.op for x in self._given.values()}
        return self._phases[phase] & ancestors(_operations(results), common_input_ops)

    def function(
        self, phase: int, inputs: Sequence[tf.Tensor], outputs: Sequence[tf.Tensor]
    ) -> Callable[..., list[tf.Tensor]]:
        """Returns a Python function that adds a phase to the graph being built.

        Its arguments, `inputs`, are tensors of the traced graph, including everything
        that the phase needs. Some of its results, `outputs`, may be inputs.
        """
        names = [x.name for x in inputs]
        operations = self.complete(phase, outputs)
        graph_def = self._sub_graph(operations)
        used = {
            x.name for op in operations for x in op.inputs if x.op not in operations
        }
        computed_names = [x.name for x in outputs if x.name not in names]

        def run(*values: tf.Tensor) -> list[tf.Tensor]:
            by_name = dict(zip(names, values, strict=True))
            results = tf.graph_util.import_graph_def(
                graph_def,
                input_map={k: v for k, v in by_name.items() if k in used},
                return_elements=computed_names,
                name="",
            )
            by_name.update(zip(computed_names, results, strict=True))
            return [by_name[x.name] for x in outputs]

        return run

    def _sub_graph(self, operations: Iterable[tf.Operation]) -> Any:
        names = {op.name for op in operations}
        graph_def = tf.compat.v1.GraphDef(
            library=self._graph_def.library, versions=self._graph_def.versions
        )
        for name in sorted(names):
            node = graph_def.node.add()
            node.CopyFrom(self._nodes[name])
            node.attr.pop("_class", None)
            inputs = [x for x in node.input if x[0] != "^" or x[1:] in names]
            del node.input[:]
            node.input.extend(inputs)
        return graph_def


def captured_constants(graph: Any) -> list[tuple[tf.Tensor, tf.Tensor]]:
    """Returns pairs (placeholder, value) of the values that a graph captured.

    A value that was computed when the graph was traced never changes, unlike a variable
    or a tensor of another graph.
    """
    return [
        (inner, outer)
        for outer, inner in graph.captures
        if not (tf.is_symbolic_tensor(outer) or outer.dtype in REFERENCES)
    ]


def dependents(graph: Any, sources: Iterable[tf.Operation]) -> set[tf.Operation]:
    """Returns the sources, and the operations that depend on a source."""
    reached = set(sources)
    for op in graph.get_operations():
        if any(x.op in reached for x in op.inputs):
            reached.add(op)
    return reached


def ancestors(
    operations: Iterable[tf.Operation], stop: Container[tf.Operation] = ()
) -> set[tf.Operation]:
    """Returns the operations and their ancestors. The search ends before `stop`."""
    reached: set[tf.Operation] = set()
    pending = list(operations)
    while pending:
        op = pending.pop()
        if op in reached or op in stop:
            continue
        reached.add(op)
        pending.extend(x.op for x in op.inputs)
        pending.extend(op.control_inputs)
    return reached


def _constant_node(name: str, value: tf.Tensor) -> Any:
    with tf.Graph().as_default():
        return tf.constant(value.numpy(), value.dtype, name=name).op.node_def


def _operations(results: Iterable[Any]) -> Iterator[tf.Operation]:
    return (x if isinstance(x, tf.Operation) else x.op for x in results)


def _consequences(graph: tf.Graph, weights: Sequence[tf.Tensor]) -> set[tf.Operation]:
    """Returns the operations that depend only on weights and constants."""
    constant_ops = {x.op for x in weights}
    for op in graph.get_operations():
        if op.type == "Placeholder" or graph.op_def_for_type(op.type).is_stateful:
            continue
        if all(x.op in constant_ops for x in op.inputs):
            constant_ops.add(op)
    return constant_ops
