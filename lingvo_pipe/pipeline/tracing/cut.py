r"""Cuts one traced graph into functions that run one after another.

    graph:   x --> a --> b --> y        forward:   x -> y, a     (a is kept)
                   |           |
            dx <-- c <-------- dy       backward:  a, dy -> dx

A forward pass and its gradients are traced once, together. Which operations make up a
phase follows from what it must yield; what one phase computes and a later one uses is
kept between them. The phases run the very operations of the uncut graph, so however a
graph is cut the results are the same to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf


class CutGraph:
    """A traced graph, and the phases that it is cut into."""

    def __init__(
        self,
        graph: tf.Graph,
        given: Sequence[tf.Tensor],
        weights: Sequence[tf.Tensor],
        targets: Sequence[Sequence[Any]],
    ):
        """Cuts the graph.

        Args:
            graph: the graph, traced in full.
            given: placeholders whose values every phase is given.
            weights: those of them that are the same for all runs; what follows from
                these alone is computed anew in each phase rather than kept.
            targets: for each phase the tensors and operations that it must yield.
        """
        self._graph_def = graph.as_graph_def()
        self._nodes = {node.name: node for node in self._graph_def.node}
        self._given = {x.ref(): x for x in given}
        self._free = _consequences(graph, weights)
        self._targets = targets
        self._phases: list[set[tf.Operation]] = []
        done: set[tf.Operation] = {x.op for x in given} | self._free
        for phase_targets in targets:
            phase = _ancestors((_operation(x) for x in phase_targets), done)
            self._phases.append({op for op in phase if op.type != "Placeholder"})
            done |= phase

    def needed(self, phase: int) -> list[tf.Tensor]:
        """What a phase uses that is neither given nor made by itself."""
        operations = sorted(self._phases[phase], key=lambda op: op.name)
        used = [x for op in operations for x in op.inputs]
        # What it must yield may be there already.
        used += [x for x in self._targets[phase] if isinstance(x, tf.Tensor)]
        found = {
            x.ref(): x
            for x in used
            if x.op not in self._phases[phase] and self._must_come(x)
        }
        return list(found.values())

    def is_made_in(self, phase: int, tensor: tf.Tensor) -> bool:
        """Whether a phase computes a tensor."""
        return tensor.op in self._phases[phase]

    def function(
        self, phase: int, inputs: Sequence[tf.Tensor], outputs: Sequence[tf.Tensor]
    ) -> Callable[..., list[tf.Tensor]]:
        """A phase as Python function that adds it to the graph being built.

        Args:
            phase: which one.
            inputs: what it will be given, in order: tensors of the traced graph, among
                them all that it needs.
            outputs: what it returns, in order; may be inputs too.
        """
        names = [x.name for x in inputs]
        sources = [x.op for op in self._phases[phase] for x in op.inputs]
        sources += [x.op for x in outputs]
        given = {x.op for x in self._given.values()}
        free = _ancestors((op for op in sources if op in self._free), given)
        # Without what a constant merely waits for.
        operations = self._phases[phase] | (free & self._free)
        graph_def = self._sub_graph(operations)
        used = {
            x.name for op in operations for x in op.inputs if x.op not in operations
        }
        made = [x.name for x in outputs if x.name not in names]

        def run(*values: tf.Tensor) -> list[tf.Tensor]:
            by_name = dict(zip(names, values, strict=True))
            results = tf.graph_util.import_graph_def(
                graph_def,
                input_map={k: v for k, v in by_name.items() if k in used},
                return_elements=made,
                name="",
            )
            by_name.update(zip(made, results, strict=True))
            return [by_name[x.name] for x in outputs]

        return run

    def _must_come(self, x: tf.Tensor) -> bool:
        return x.op not in self._free and x.ref() not in self._given

    def _sub_graph(self, operations: Iterable[tf.Operation]) -> Any:
        """The operations as a graph_def, without ties to any others."""
        names = {op.name for op in operations}
        graph_def = tf.compat.v1.GraphDef(
            library=self._graph_def.library, versions=self._graph_def.versions
        )
        for name in sorted(names):
            node = graph_def.node.add()
            node.CopyFrom(self._nodes[name])
            node.attr.pop("_class", None)
            kept = [x for x in node.input if x[0] != "^" or x[1:] in names]
            del node.input[:]
            node.input.extend(kept)
        return graph_def


def _operation(target: Any) -> tf.Operation:
    return target if isinstance(target, tf.Operation) else target.op


def _ancestors(
    operations: Iterable[tf.Operation], stop: set[tf.Operation]
) -> set[tf.Operation]:
    """The operations and all that they follow from, short of `stop`."""
    found: set[tf.Operation] = set()
    pending = list(operations)
    while pending:
        op = pending.pop()
        if op in found or op in stop:
            continue
        found.add(op)
        pending.extend(x.op for x in op.inputs)
        pending.extend(op.control_inputs)
    return found


def _consequences(graph: tf.Graph, weights: Sequence[tf.Tensor]) -> set[tf.Operation]:
    """The operations that follow from weights and constants alone."""
    found = {x.op for x in weights}
    for op in graph.get_operations():
        if op.type == "Placeholder" or graph.op_def_for_type(op.type).is_stateful:
            continue
        if all(x.op in found for x in op.inputs):
            found.add(op)
    return found
