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
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from keras import tree

from lingvo_pipe.core.checks import check_counts
from lingvo_pipe.core.errors import UserTypeError, UserValueError, Words
from lingvo_pipe.core.nests import map_present, pack_present, present, spec_of
from lingvo_pipe.keras.cells.private_names import shallow_copy
from lingvo_pipe.keras.group_draws import (
    GroupDraws,
    GroupsError,
    has_stop_in_padding,
)
from lingvo_pipe.keras.pipelines import text_of_specs
from lingvo_pipe.keras.placed_call import Layout, PlacedCall, cache_specs

_NEEDED = ("generate", "generate_step", "sampler")
# The methods of KerasHub's tasks that run their layers.
_CALLS = ("call_with_cache", "call_encoder", "call_decoder_with_cache")


class Generation:
    """Generation by a task, in groups of prompts."""

    def __init__(self, task: Any, num_groups: int | None, num_devices: int):
        """Refuses what cannot generate in groups.

        If `num_groups`, the largest number of groups, is None, it is `num_devices`, or
        1 if several groups would change tokens.

        Raises:
            TypeError: if the task is no CausalLM or Seq2SeqLM of KerasHub.
            ValueError: if the number is invalid, or above 1 with a sampler's own loop.
        """
        _check(task)
        has_own_loop = _has_own_loop(task.sampler)
        self._may_be_one = num_groups is None
        if num_groups is None:
            num_groups = 1 if has_own_loop else num_devices
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

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Returns what the task's `generate` returns for these arguments.

        Raises:
            ValueError: if `assistant_model` is given, or groups would change tokens.
        """
        named = inspect.signature(self._task.generate).bind_partial(*args).arguments
        assistant = {**named, **options}.get("assistant_model")
        if assistant is not None:
            raise UserValueError(
                path="assistant_model",
                expected="None, since another model's tokens take their own loop",
                got=Words(type(assistant).__name__),
                hint="Call `pipelined.model.generate`, which is not in groups.",
            )
        runner = shallow_copy(self._task, generate_function=self._generate)
        return runner.generate(*args, **options)

    def _generate(self, inputs: Any, stop_token_ids: Any = None) -> Any:
        inputs = map_present(tf.convert_to_tensor, inputs)
        stops = None if stop_token_ids is None else tuple(stop_token_ids)
        num_groups = self.num_groups
        if num_groups > 1 and stops and has_stop_in_padding(inputs, stops):
            if not self._may_be_one:
                raise GroupsError(
                    path="num_groups",
                    expected="1 for padding that is a stop token, with which a call "
                    "ends by its longest prompt",
                    got=num_groups,
                )
            num_groups = 1
        key = self._task.sampler, stops, text_of_specs(inputs), num_groups
        if key not in self._functions:
            self._functions[key] = self._traced(inputs, stops, num_groups)
        return self._functions[key](inputs)

    def _traced(
        self, inputs: Any, stops: Sequence[int] | None, num_groups: int
    ) -> Callable:
        def traced(num_groups: int) -> Callable:
            run = functools.partial(self._run_groups, num_groups, stops)
            return tf.function(run, autograph=False).get_concrete_function(inputs)

        try:
            return traced(num_groups)
        except GroupsError:
            if not self._may_be_one:
                raise
            return traced(1)

    def _run_groups(
        self, num_groups: int, stops: Sequence[int] | None, inputs: Any
    ) -> Any:
        groups, sampler = _groups(inputs, num_groups), self._task.sampler
        draws: GroupDraws | None = None
        lengths: set[int] | None = None
        if len(groups) > 1:
            draws, lengths = GroupDraws(sampler, inputs), _text_lengths(inputs)
        layouts: dict[str, Sequence[Layout | None]] = {}
        calls = {
            name: functools.partial(self._call, name, lengths, layouts)
            for name in _calls(self._task)
        }
        results: list[Any] = []
        first_row = 0
        for group in groups:
            if draws is not None:
                run_loop = functools.partial(draws.run_loop, group, first_row)
                sampler = shallow_copy(self._task.sampler, run_loop=run_loop)
                first_row += present(group)[0].shape[0]
            runner = shallow_copy(self._task, sampler=sampler, **calls)
            results.append(runner.generate_step(group, stops))
        if draws is not None:
            draws.advance()
        return tf.nest.map_structure(_joined, *results)

    def _call(
        self,
        name: str,
        lengths: set[int] | None,
        layouts: dict[str, Sequence[Layout | None]],
        *args: Any,
        **named: Any,
    ) -> Any:
        """Calls a method of the task. Each new cache that it returns is in `Parts`.

        `lengths` are from `_text_lengths`, or None for one group. The layouts of the
        method's caches are added to `layouts`.
        """
        method = getattr(self._task, name)
        arguments = inspect.signature(method).bind(*args, **named).arguments
        names = [x for x in arguments if x.endswith("cache")]
        caches = tuple(arguments.pop(x) for x in names)
        specs = cache_specs(caches, layouts.get(name))
        key = name, _key(specs), *((x, _key(y)) for x, y in arguments.items())
        if key not in self._calls:
            by_name = dict(zip(names, specs, strict=True))
            self._calls[key] = PlacedCall(method, by_name, arguments)
        call = self._calls[key]
        if layouts.setdefault(name, call.layouts) != call.layouts:
            raise UserTypeError(
                path=f"model {self._task.name!r}",
                expected=f"a {name} that reads its caches alike for prompts and tokens",
                got=Words(type(self._task).__name__),
                hint="Call `pipelined.model.generate`, which is not in groups.",
            )
        if lengths is not None and any(
            lengths.isdisjoint(shape[1:]) for shape in call.part_shapes
        ):
            raise GroupsError(
                path="num_groups",
                expected=f"1 for {type(self._task).__name__}, whose caches have no "
                "place for each token, and so depend on the shortest prompt of a group",
                got=self.num_groups,
            )
        results, new_caches = call(arguments, caches)
        return (*results, *new_caches) if names else results


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

    kind = type(sampler)
    return (kind.__call__, kind.run_loop) != (Sampler.__call__, Sampler.run_loop)


def _key(x: Any) -> Any:
    """Returns what a trace of an argument depends on."""
    return tuple(spec_of(y) if tf.is_tensor(y) else y for y in tree.flatten(x))


def _text_lengths(inputs: Any) -> set[int]:
    """Returns the padded texts' lengths L, from the padding masks among the inputs."""
    named = inputs if isinstance(inputs, Mapping) else {}
    masks = present([x for name, x in named.items() if name.endswith("padding_mask")])
    return {mask.shape[-1] for mask in masks}


def _groups(inputs: Any, num_groups: int) -> list[Any]:
    """Returns each group's inputs. Sizes are as even as possible, larger ones first."""
    if num_groups == 1:
        return [inputs]
    numbers = sorted({x.shape[0] for x in present(inputs)})
    if len(numbers) > 1:
        raise GroupsError(
            path="generate",
            expected="inputs with a row for each prompt, to cut them into groups",
            got=numbers,
            hint="Use num_groups=1.",
        )
    number = max(min(numbers[0], num_groups), 1)
    sizes = [(numbers[0] + number - 1 - i) // number for i in range(number)]
    cut = (tf.split(x, sizes) for x in present(inputs))
    return [pack_present(inputs, group) for group in zip(*cut, strict=True)]


def _joined(*results: Any) -> Any:
    return None if results[0] is None else tf.concat(results, 0)
