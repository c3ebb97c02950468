"""A forward pass and its gradients, traced together into one graph.

`body(theta, call_context, args)` is a layer's forward pass, or the loss. A `Trace`
holds the results and their gradients as tensors of the traced graph. `phases` cuts that
graph into a forward and a backward function.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from lingvo_pipe.core.nests import is_differentiable, map_present, present
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.tracing.cut import ancestors


class CallContext(NamedTuple):
    """Arguments of a forward pass besides weights and inputs. Unknown ones are None."""

    path_hash: Any = None  # [] uint64, the hash of the layer's path.
    step: Any = None  # [] integer, the training step.
    # [] int64, the micro-batch's first example in the mini-batch.
    first_example: Any = None
    # [] int32, the number of rows that are examples; if None, all are.
    num_examples: Any = None
    loss_scale: Any = None  # [] float64, the factor of auxiliary losses.


class Result(NamedTuple):
    """The results of a layer's forward pass, or of the loss."""

    outputs: Any  # Structure of tensors and None.
    sums: NestedMap  # Structure of tensors that add up over micro-batches.
    # Scalars whose sum is differentiated in addition to the outputs.
    goals: Sequence[tf.Tensor] = ()
    # More such scalars, not multiplied by `CallContext.loss_scale`.
    local_goals: Sequence[tf.Tensor] = ()


Body = Callable[[Any, CallContext, Any], Result]


class Trace:
    """The traced graph and the tensors in it.

    Attributes:
        weights: flat theta.
        call_context: the known fields, flat.
        args: flat inputs, without None.
        forward: operations of the forward pass.
        must_run: operations of the forward pass with side effects.
        draws: whether the layer draws random numbers, which depend on its path.
        uses: for each of `args`, whether anything is computed from it.
        made: the distinct outputs that are not inputs.
        output_gradients: placeholders for the gradients of `made`; None for an output
            that has no gradient.
        wants: for each of `made`, whether a gradient is computed from its gradient.
        goal_seeds: the goals' gradients, `loss_scale` or 1, where backward begins.
        weight_gradients: for each of `weights`, its gradient, or None if not trained.
        input_gradients: for each of `args`, its gradient, or None if not connected.
        must_run_backward: operations with side effects that only the gradients have,
            and that no gradient needs.
    """

    def __init__(
        self,
        body: Body,
        theta: Any,
        trained: Sequence[bool],
        call_context: CallContext,
        args: Any,
        trains: bool,
    ):
        """Traces a body, and its gradients if `trains`.

        `theta`, `call_context` and `args` are specs of the body's arguments. `trained`
        says for each flat weight whether it is trained.
        """
        record = functools.partial(self._record, body, trained, trains)
        function = tf.function(record, autograph=False)
        self.graph = function.get_concrete_function(theta, call_context, args).graph

    def _record(
        self,
        body: Body,
        trained: Sequence[bool],
        trains: bool,
        theta: Any,
        call_context: CallContext,
        args: Any,
    ) -> None:
        self.weights = tf.nest.flatten(theta)
        self.call_context = present(call_context)
        self.args = present(args)
        learned = [w for w, yes in zip(self.weights, trained, strict=True) if yes]
        sources = differentiable(self.args)
        with tf.GradientTape() as tape:
            if trains:
                tape.watch(learned + sources)
            result = body(theta, call_context, args)
            outputs = map_present(tf.convert_to_tensor, result.outputs)
            self.result = result._replace(outputs=outputs)
        graph = tf.compat.v1.get_default_graph()
        self.forward = graph.get_operations()
        self.must_run = effects(graph)
        distinct = {x.ref(): x for x in present(self.result.outputs)}
        inputs = {x.ref() for x in self.args}
        self.made = [x for ref, x in distinct.items() if ref not in inputs]
        self.output_gradients = [
            tf.compat.v1.placeholder(y.dtype, y.shape) if is_differentiable(y) else None
            for y in self.made
        ]
        gradients_by_ref: dict[Any, tf.Tensor] = {}
        self.goal_seeds: list[tf.Tensor] = []
        if trains:
            # A weight that nothing depends on is trained too, by gradients of 0.
            gradients_by_ref.update({w.ref(): tf.zeros_like(w) for w in learned})
            gradients_by_ref.update(
                self._gradients(tape, learned + sources, call_context)
            )
        self.weight_gradients = [gradients_by_ref.get(x.ref()) for x in self.weights]
        self.input_gradients = [gradients_by_ref.get(x.ref()) for x in self.args]
        # An output's gradient may itself be a gradient of an input or weight.
        gradients = present((self.weight_gradients, self.input_gradients))
        passed_on = {gradient.ref() for gradient in gradients}
        needed = {*self.must_run, *ancestors(x.op for x in gradients)}
        self.must_run_backward = [op for op in effects(graph) if op not in needed]
        self.wants = [
            x is not None and (bool(x.consumers()) or x.ref() in passed_on)
            for x in self.output_gradients
        ]
        path_hash = call_context.path_hash
        self.draws = path_hash is not None and bool(path_hash.consumers())
        # After the gradients: a custom_gradient may use more inputs.
        self.uses = [bool(x.consumers()) for x in self.args]

    def _gradients(
        self, tape: tf.GradientTape, sources: list[tf.Tensor], context: CallContext
    ) -> dict[Any, tf.Tensor]:
        """Returns gradients by source, for the sources that the results depend on."""
        goals, local_goals = self.result.goals, self.result.local_goals
        targets = [*differentiable(self.made), *goals, *local_goals]
        scale = 1.0 if context.loss_scale is None else context.loss_scale
        self.goal_seeds = [tf.cast(scale, goal.dtype) for goal in goals]
        self.goal_seeds += [tf.ones([], goal.dtype) for goal in local_goals]
        seeds = present(self.output_gradients) + self.goal_seeds
        if not targets or not sources:
            return {}
        gradients = tape.gradient(targets, sources, output_gradients=seeds)
        pairs = zip(sources, gradients, strict=True)
        return {x.ref(): tf.convert_to_tensor(g) for x, g in pairs if g is not None}


def differentiable(structure: Any) -> list[tf.Tensor]:
    """Returns the tensors of a structure that can have gradients, flat."""
    return [x for x in present(structure) if is_differentiable(x)]


def effects(graph: Any) -> list[tf.Operation]:
    """Returns a graph's operations with side effects, such as assertions."""
    return [
        op
        for op in graph.get_operations()
        if op.type != "Placeholder" and graph.op_def_for_type(op.type).is_stateful
    ]
