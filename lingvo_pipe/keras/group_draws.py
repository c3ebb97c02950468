"""Draws of tokens in groups of prompts, the same as in one group of all prompts.

    place       3     4     5     6         3 is the first place in any group
    seeds       s0    s1    s2    s3
    group 0     s0    s1    s2    s3        its shortest prompt has 3 tokens
    group 1           s1    s2    s3        4 tokens: it skips the first seed

At one place, all groups draw by the same seed, and each row has its own number in the
draw. A sampler's other state and draws by other seeds are refused, because groups would
change them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.core.nests import present
from lingvo_pipe.keras.cells.row_seed import SeedState, draws_of_rows, is_unordered

_MASKS = ("padding_mask", "decoder_padding_mask")
_TOKENS = dict(zip(_MASKS, ("token_ids", "decoder_token_ids"), strict=True))
_RANDOM = ("Random", "Multinomial", "TruncatedNormal")
_NO_DRAW = "StatelessRandomGetKeyCounter"


class GroupsError(UserValueError):
    """A task or sampler whose tokens several groups would change."""


class GroupDraws:
    """The seeds with which a sampler draws tokens in each group of `inputs`."""

    def __init__(self, sampler: Any, inputs: Any):
        self._variables = list(sampler.variables)
        self._before = [tf.identity(v.value) for v in self._variables]
        # The first place for which a token is drawn in any group.
        self._first_place = first_place(inputs) if self._variables else None
        # For each group, the number of seeds used, and the states then.
        self._after: list[tuple[tf.Tensor, list[tf.Tensor]]] = []
        self._drawn: set[int] = set()  # Ids of the variables that draw.

    def run_loop(
        self,
        group: Any,
        first_row: int,
        cond: Callable,
        body: Callable,
        model: Any = None,
        loop_vars: Any = (),
        maximum_iterations: Any = None,
    ) -> Any:
        """Runs a sampler's loop for one group. For the arguments see KerasHub's."""
        skipped = tf.zeros([], tf.int64)
        if self._first_place is not None:
            skipped = tf.cast(first_place(group) - self._first_place, tf.int64)
        seeds = [seed + [0, skipped] for seed in self._before]
        num_rows = present(group)[0].shape[0]
        first = tf.constant(first_row, tf.int64)

        def step(number: Any, states: Any, *values: Any) -> Any:
            scope = _DrawScope(
                {
                    id(v): SeedState(state, first, num_rows)
                    for v, state in zip(self._variables, states, strict=True)
                }
            )
            with scope, draws_of_rows():
                values = body(*values)
            scope.check_draws(tf.compat.v1.get_default_graph())
            self._drawn |= scope.drawn
            return number + 1, scope.new_states(), *values

        number, states, *values = tf.while_loop(
            lambda number, states, *values: cond(*values),
            step,
            [skipped, seeds, *loop_vars],
            maximum_iterations=maximum_iterations,
        )
        self._after.append((number, states))
        return values

    def advance(self) -> None:
        """Sets the sampler's seeds as one group of all prompts would leave them."""
        numbers, states = zip(*self._after, strict=True)
        longest = tf.argmax(tf.stack(numbers))
        for variable, *after in zip(self._variables, *states, strict=True):
            if id(variable) in self._drawn:
                variable.assign(tf.gather(tf.stack(after), longest))


class _DrawScope(keras.StatelessScope):
    """A scope in which seeds, by id, have a group's states. Each may draw once."""

    def __init__(self, states: dict[int, SeedState]):
        super().__init__()
        self._states = states
        self._after: dict[int, tf.Tensor] = {}

    def get_current_value(self, variable: keras.Variable) -> Any:
        return self._states.get(id(variable))

    def add_update(self, update: tuple[keras.Variable, Any]) -> None:
        variable, value = update
        if id(variable) not in self._states:
            raise _sampler_error(f"an update of {variable.path}")
        if id(variable) in self._after:
            raise _sampler_error("several draws from one SeedGenerator")
        if is_unordered(value):
            raise _sampler_error("SeedGenerator.next(ordered=False)")
        self._after[id(variable)] = value

    @property
    def drawn(self) -> set[int]:
        """The ids of the variables that have drawn."""
        return set(self._after)

    def check_draws(self, graph: tf.Graph) -> None:
        """Raises ValueError if a loop's graph draws more often than these seeds do."""
        kinds = [op.type for op in graph.get_operations() if op.type != _NO_DRAW]
        draws = [kind for kind in kinds if any(name in kind for name in _RANDOM)]
        if len(draws) > len(self._after):
            raise _sampler_error("a draw by another seed")

    def new_states(self) -> list[tf.Tensor]:
        """Returns the states after the draws, in the order of the variables."""
        return [self._after.get(x, old.state) for x, old in self._states.items()]


def _sampler_error(got: str) -> GroupsError:
    return GroupsError(
        path="sampler",
        expected="one draw for each token, by a SeedGenerator that is an attribute, "
        "and no other state, so that groups draw the same",
        got=Words(got),
        hint="Call generate with num_groups=1.",
    )


def first_place(inputs: Any) -> tf.Tensor:
    """Returns the first place that is generated: the length of the shortest prompt.

    Raises:
        ValueError: if the inputs have no mask of the prompts.
    """
    named = inputs if isinstance(inputs, Mapping) else {}
    masks = present([named.get(name) for name in _MASKS])
    if not masks:
        raise GroupsError(
            path="generate",
            expected=f"inputs with one of {_MASKS}, to draw tokens in groups",
            got=Words("others"),
            hint="Use num_groups=1, or a sampler without random numbers.",
        )
    return tf.reduce_min(tf.reduce_sum(tf.cast(masks[-1], tf.int32), -1))


def has_stop_in_padding(inputs: Any, stops: Sequence[int]) -> bool:
    """Returns whether a prompt is padded with a stop token.

    KerasHub then takes it as finished, and ends a call when all prompts are.
    """
    named = inputs if isinstance(inputs, Mapping) else {}
    pairs = ((named.get(_TOKENS[x]), named.get(x)) for x in _MASKS)
    return any(
        np.isin(np.asarray(tokens)[~np.asarray(mask, bool)], stops).any()
        for tokens, mask in pairs
        if tokens is not None and mask is not None
    )
