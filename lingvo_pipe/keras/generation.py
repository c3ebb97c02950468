"""Generation by KerasHub's language models whose layers are on several devices.

    device 0 | a a   b b   a a   b b        a, b: groups of prompts, a token at a time
    device 1 |     a a   b b   a a   b b

Each group has a loop of its own, in one graph. While a group's token is in the layers
of one device, other groups' tokens are on the other devices. Preprocessing, the steps
of a loop and the choice of tokens are KerasHub's: only a copy of the task is changed.

Shapes: B prompts in all, L tokens.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf
from keras import tree

from lingvo_pipe.core.checks import check_counts
from lingvo_pipe.core.errors import UserTypeError, UserValueError, Words
from lingvo_pipe.core.nests import spec_of
from lingvo_pipe.keras.cells.private_names import shallow_copy
from lingvo_pipe.keras.cells.row_seed import SeedState, draws_of_rows
from lingvo_pipe.keras.placed_call import (
    Layout,
    PlacedCall,
    flat_caches,
    pack_caches,
)

_NEEDED = ("generate", "generate_step", "sampler")
# The methods of KerasHub's tasks that run their layers.
_CALLS = ("call_with_cache", "call_encoder", "call_decoder_with_cache")
_MASKS = ("padding_mask", "decoder_padding_mask")


class Generation:
    """Generation by a task, in groups of prompts.

    Attributes:
        num_groups: the largest number of groups.
    """

    def __init__(self, task: Any, num_groups: int | None, num_stages: int):
        """Refuses what cannot generate in groups.

        Args:
            task: a CausalLM or Seq2SeqLM of KerasHub.
            num_groups: the largest number of groups. If None, the number of stages, or
                1 if the sampler has its own loop.
            num_stages: the number of stages.

        Raises:
            TypeError: if the task is another model.
            ValueError: if the number is not valid, or the sampler has its own loop.
        """
        _check(task)
        has_own_loop = _has_own_loop(task.sampler)
        if num_groups is None:
            num_groups = 1 if has_own_loop else num_stages
        check_counts(num_groups=num_groups)
        if num_groups > 1 and has_own_loop:
            raise UserValueError(
                path="num_groups",
                expected=f"1 for {type(task.sampler).__name__}, whose results for a "
                "prompt depend on when other prompts end",
                got=num_groups,
                hint="Leave it out, or use a sampler that chooses token by token.",
            )
        self._task, self.num_groups = task, num_groups
        self._calls: dict[Any, PlacedCall] = {}
        self._functions: dict[Any, Callable] = {}
        # Of each method: the caches' specs and layouts, once they were made.
        self._caches: dict[str, tuple[Any, Sequence[Layout | None]]] = {}

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Returns what the task's `generate` returns for these arguments."""
        runner = shallow_copy(self._task, generate_function=self._generate)
        return runner.generate(*args, **options)

    def _generate(self, inputs: Any, stop_token_ids: Any = None) -> Any:
        inputs = tree.map_structure(tf.convert_to_tensor, inputs)
        stops = None if stop_token_ids is None else tuple(stop_token_ids)
        sampler = self._task.sampler
        key = sampler, stops, *map(spec_of, tree.flatten(inputs))
        if key not in self._functions:
            run = functools.partial(self._run_groups, stops)
            function = tf.function(run, autograph=False)
            self._functions[key] = function.get_concrete_function(inputs)
        return self._functions[key](inputs)

    def _run_groups(self, stops: Sequence[int] | None, inputs: Any) -> Any:
        """Returns the results of generate_step for all groups, joined."""
        (num_rows, *_) = {x.shape[0] for x in tree.flatten(inputs)}
        sizes = _group_sizes(num_rows, self.num_groups)
        starts = [0, *itertools.accumulate(sizes)]
        cut = (tf.split(x, sizes) for x in tree.flatten(inputs))
        parts = [tree.pack_sequence_as(inputs, flat) for flat in zip(*cut, strict=True)]
        sampler = self._task.sampler
        draws = len(sizes) > 1 and bool(sampler.variables)
        seeds = _Seeds(sampler, _first_place(inputs)) if draws else None
        results = []
        for part, start in zip(parts, starts, strict=False):
            if seeds is not None:
                run_loop = functools.partial(seeds.run_loop, part, start)
                sampler = shallow_copy(self._task.sampler, run_loop=run_loop)
            calls = {x: functools.partial(self._call, x) for x in _calls(self._task)}
            runner = shallow_copy(self._task, sampler=sampler, **calls)
            results.append(runner.generate_step(part, stops))
        if seeds is not None:
            seeds.advance()
        return tree.map_structure(lambda *x: tf.concat(x, 0), *results)

    def _call(self, name: str, *args: Any, **named: Any) -> Any:
        """Returns what a method returns. Each new cache is a list of parts."""
        method = getattr(self._task, name)
        arguments = inspect.signature(method).bind(*args, **named).arguments
        names = [x for x in arguments if x.endswith("cache")]
        caches = tuple(arguments.pop(x) for x in names)
        specs = self._specs(name, caches)
        key = name, _key(specs), *((x, _key(y)) for x, y in arguments.items())
        if key not in self._calls:
            by_name = dict(zip(names, specs, strict=True))
            self._calls[key] = PlacedCall(method, by_name, arguments)
        call = self._calls[key]
        _, layouts = self._caches.setdefault(name, (call.new_caches, call.layouts))
        if layouts != call.layouts:
            raise UserTypeError(
                path=f"model {self._task.name!r}",
                expected=f"a {name} that reads its caches alike for prompts and tokens",
                got=Words(type(self._task).__name__),
                hint="Generate with model.model, on one device.",
            )
        results, new_caches = call(arguments, caches)
        return (*results, *new_caches) if names else results

    def _specs(self, name: str, caches: tuple[Any, ...]) -> tuple[Any, ...]:
        """Returns the specs of caches.

        For a cache that is kept in parts, it is the spec of the whole cache.
        """
        known, _ = self._caches.get(name, (caches, ()))
        flat = []
        for cache, spec in zip(flat_caches(caches), flat_caches(known), strict=True):
            if isinstance(cache, list):
                shape = [cache[0].shape[0], *spec.shape[1:]]
                flat.append(tf.TensorSpec(shape, spec.dtype))
            else:
                flat.append(None if cache is None else spec_of(cache))
        return pack_caches(caches, iter(flat))


def _check(task: Any) -> None:
    if not all(hasattr(task, x) for x in _NEEDED) or not _calls(task):
        raise UserTypeError(
            path=f"model {task.name!r}",
            expected="a CausalLM or Seq2SeqLM of KerasHub, which generates with caches",
            got=Words(type(task).__name__),
            hint=f"It would have the attributes {', '.join(_NEEDED)}, and one of "
            f"{', '.join(_CALLS)}.",
        )


def _calls(task: Any) -> list[str]:
    return [name for name in _CALLS if hasattr(task, name)]


def _has_own_loop(sampler: Any) -> bool:
    """Returns whether a sampler does more than choose the next tokens."""
    from keras_hub.samplers import Sampler  # Whoever has such a task has imported it.

    return type(sampler).__call__ is not Sampler.__call__


def _key(x: Any) -> Any:
    """Returns what a trace of an argument depends on."""
    return tuple(spec_of(y) if tf.is_tensor(y) else y for y in tree.flatten(x))


def _group_sizes(num_rows: int, num_groups: int) -> list[int]:
    """Returns the groups' sizes, as even as possible, the larger ones first."""
    number = min(num_rows, num_groups)
    return [(num_rows + number - 1 - i) // number for i in range(number)]


class _Seeds:
    """The seeds with which a sampler draws tokens in each of several groups.

    One group of all prompts would use the same seeds: a token at one place takes
    the same seed in each group. A group whose prompts are all longer than others skips
    the first seeds.

    Args:
        sampler: the sampler.
        first_place: the first place for which a token is drawn in any group.
    """

    def __init__(self, sampler: Any, first_place: tf.Tensor):
        self._variables = list(sampler.variables)
        self._first_place = first_place
        self._before = [tf.identity(v.value) for v in self._variables]
        # For each group, the number of seeds used, and the states then.
        self._after: list[tuple[tf.Tensor, list[tf.Tensor]]] = []

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
        skipped = tf.cast(_first_place(group) - self._first_place, tf.int64)
        seeds = [seed + [0, skipped] for seed in self._before]
        num_rows = tree.flatten(group)[0].shape[0]
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
            variable.assign(tf.gather(tf.stack(after), longest))


class _DrawScope(keras.StatelessScope):
    """A scope in which seeds have a group's states, and may draw once each.

    Args:
        states: the states, by the id of the variable.
    """

    def __init__(self, states: dict[int, SeedState]):
        super().__init__()
        self._states = states
        self._after: dict[int, tf.Tensor] = {}

    def get_current_value(self, variable: keras.Variable) -> Any:
        return self._states.get(id(variable))

    def add_update(self, update: tuple[keras.Variable, Any]) -> None:
        variable, value = update
        if id(variable) in self._after:
            raise UserValueError(
                path="sampler",
                expected="one draw for each token, so that groups draw the same",
                got=Words("several draws from one SeedGenerator"),
                hint="Call generate with num_groups=1.",
            )
        self._after[id(variable)] = value

    def new_states(self) -> list[tf.Tensor]:
        """Returns the states after the draws, in the order of the variables."""
        return [self._after.get(x, old.state) for x, old in self._states.items()]


def _first_place(inputs: Any) -> tf.Tensor:
    """Returns the first place that is generated: the length of the shortest prompt."""
    masks = [inputs[x] for x in _MASKS if isinstance(inputs, Mapping) and x in inputs]
    if not masks:
        raise UserValueError(
            path="generate",
            expected=f"inputs with one of {_MASKS}, to draw tokens in groups",
            got=Words("others"),
            hint="Use num_groups=1, or a sampler without random numbers.",
        )
    return tf.reduce_min(tf.reduce_sum(tf.cast(masks[-1], tf.int32), -1))
