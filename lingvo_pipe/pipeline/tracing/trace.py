"""A forward pass and its gradients, traced once, together, into one graph.

`body(theta, surroundings, args)` is a layer's forward pass, or the loss. What it
returns and what its gradients are is recorded here as tensors of the traced graph;
`phases` cuts that graph into a forward and a backward function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.optional_nest import map_present, present


class Surroundings(NamedTuple):
    """What a forward pass is told beside weights and inputs; None: not known.

    Attributes:
        path_hash: [] uint64, the hash of the layer's path.
        step: [] integer, the training step.
        first_example: [] int64, place in the mini-batch of the micro-batch's first.
        num_examples: [] int32, how many of its rows are examples; None: all.
        loss_scale: [] float64, by which side losses count.
    """

    path_hash: Any = None
    step: Any = None
    first_example: Any = None
    num_examples: Any = None
    loss_scale: Any = None


class Result(NamedTuple):
    """What a body returns.

    Attributes:
        outputs: structure of tensors and None.
        sums: structure of tensors that add up over micro-batches.
        goals: scalars whose sum is differentiated beside the outputs.
        local_goals: likewise, but not multiplied by `Surroundings.loss_scale`.
    """

    outputs: Any
    sums: NestedMap
    goals: Sequence[tf.Tensor] = ()
    local_goals: Sequence[tf.Tensor] = ()


Body = Callable[[Any, Surroundings, Any], Result]


class Trace:
    """The traced graph and the tensors in it.

    Attributes:
        graph: the graph.
        weights: flat theta.
        surroundings: those known, flat.
        args: flat inputs; None left out.
        result: what the body returned.
        must_run: operations of the forward pass that nothing consumes.
        uses: of `args`, whether anything is computed from them.
        made: the distinct outputs that are not inputs handed on.
        output_gradients: of `made`, placeholders; None for what has no gradient.
        wants: of `made`, whether a gradient is computed from that of the output.
        goal_seeds: by which the goals' gradients are multiplied.
        weight_gradients: of `weights`; None for what is not trained or not connected.
        input_gradients: of `args`; None for what is not connected.
    """

    def __init__(
        self,
        body: Body,
        theta: Any,
        trained: Sequence[bool],
        surroundings: Surroundings,
        args: Any,
        trains: bool,
    ):
        """Traces a body.

        Args:
            body: see the top of the file.
            theta: specs of the weights.
            trained: for each of the flat weights.
            surroundings: specs.
            args: specs of the positional inputs.
            trains: whether gradients are wanted.
        """

        def traced(theta: Any, surroundings: Surroundings, args: Any) -> None:
            self._record(body, theta, trained, surroundings, args, trains)

        function = tf.function(traced, autograph=False)
        self.graph = function.get_concrete_function(theta, surroundings, args).graph

    def _record(
        self,
        body: Body,
        theta: Any,
        trained: Sequence[bool],
        surroundings: Surroundings,
        args: Any,
        trains: bool,
    ) -> None:
        self.weights = tf.nest.flatten(theta)
        self.surroundings = present(surroundings)
        self.args = present(args)
        learned = [w for w, yes in zip(self.weights, trained, strict=True) if yes]
        sources = differentiable(self.args)
        with tf.GradientTape() as tape:
            if trains:
                tape.watch(learned + sources)
            result = body(theta, surroundings, args)
            outputs = map_present(tf.convert_to_tensor, result.outputs)
            self.result = result._replace(outputs=outputs)
        graph = tf.compat.v1.get_default_graph()
        self.must_run = effects(graph)
        self.made = _distinct(present(self.result.outputs), self.args)
        self.output_gradients = [
            tf.compat.v1.placeholder(y.dtype, y.shape) if is_differentiable(y) else None
            for y in self.made
        ]
        found: dict[Any, tf.Tensor] = {}
        self.goal_seeds: list[tf.Tensor] = []
        if trains:
            # A weight that nothing depends on is trained too, by gradients of 0.
            found.update({w.ref(): tf.zeros_like(w) for w in learned})
            found.update(self._gradients(tape, learned + sources, surroundings))
        self.weight_gradients = [found.get(x.ref()) for x in self.weights]
        self.input_gradients = [found.get(x.ref()) for x in self.args]
        # One that is handed on is a gradient itself.
        handed_on = {
            gradient.ref()
            for gradient in (*self.weight_gradients, *self.input_gradients)
            if gradient is not None
        }
        self.wants = [
            x is not None and (bool(x.consumers()) or x.ref() in handed_on)
            for x in self.output_gradients
        ]
        # By the gradients too: those of a custom_gradient may need more inputs.
        self.uses = [bool(x.consumers()) for x in self.args]

    def _gradients(
        self, tape: tf.GradientTape, sources: list[tf.Tensor], told: Surroundings
    ) -> dict[Any, tf.Tensor]:
        """The gradients of those sources that anything depends on."""
        goals, local_goals = self.result.goals, self.result.local_goals
        targets = [*differentiable(self.made), *goals, *local_goals]
        scale = 1.0 if told.loss_scale is None else told.loss_scale
        self.goal_seeds = [tf.cast(scale, goal.dtype) for goal in goals]
        self.goal_seeds += [tf.ones([], goal.dtype) for goal in local_goals]
        seeds = present(self.output_gradients) + self.goal_seeds
        if not targets or not sources:
            return {}
        gradients = tape.gradient(targets, sources, output_gradients=seeds)
        return {
            x.ref(): tf.convert_to_tensor(gradient)
            for x, gradient in zip(sources, gradients, strict=True)
            if gradient is not None
        }


def is_differentiable(x: Any) -> bool:
    """Whether a tensor of this dtype has gradients."""
    return x.dtype.is_floating or x.dtype.is_complex


def differentiable(structure: Any) -> list[tf.Tensor]:
    """The tensors of a structure that have gradients, flat."""
    return [x for x in present(structure) if is_differentiable(x)]


def _distinct(tensors: Sequence[tf.Tensor], known: Sequence[tf.Tensor]) -> list[Any]:
    """Each tensor once, without those known already."""
    found = {x.ref(): x for x in tensors}
    for x in known:
        found.pop(x.ref(), None)
    return list(found.values())


def effects(graph: Any) -> list[tf.Operation]:
    """Operations, such as assertions, that are there to run rather than to be used."""
    return [
        op
        for op in graph.get_operations()
        if op.type != "Placeholder" and graph.op_def_for_type(op.type).is_stateful
    ]
