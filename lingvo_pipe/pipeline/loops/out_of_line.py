"""Calls of functions and methods that are one node of the graph each.

A decorated method is traced as a function at its first call with arguments of certain
shapes and dtypes. Each call adds one node to the graph being built, or none if the
function computes nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

import tensorflow as tf

from lingvo_pipe.core.nests import map_present, pack_present, present, spec_of
from lingvo_pipe.pipeline.tracing.trace import effects

_Method = TypeVar("_Method", bound=Callable[..., Any])


def out_of_line(method: _Method) -> _Method:
    """Decorates a method so that each call is one node of the graph.

    The object keeps the traced functions in `functions`. Positional arguments are
    nested tensors and None. Keyword arguments are constants of the traced function.
    """

    @functools.wraps(method)
    def call(self: Any, *args: Any, **options: Any) -> Any:
        return _call_node(self, method, method.__name__, args, options)

    return cast(_Method, call)


def shared_by_kind(operation: _Method) -> _Method:
    """Decorates a stage's method like `out_of_line`, once for all identical stages.

    Dicts among the arguments and results are keyed by the numbers of tensors that pass
    between layers. The result is a tuple. `wanted` lists the numbers of the tensors to
    return. Numbers that the stage does not use are left out. Identical stages have
    different numbers for these tensors, so the shared function uses the numbers of the
    first stage. Tensors at one of its `positions` correspond in all identical stages
    (see `Stage`).
    """

    @functools.wraps(operation)
    def call(stage: Any, *args: Any, wanted: Iterable[int] = (), **options: Any) -> Any:
        first = stage.first
        in_first = {v: first.numbers[i] for v, i in stage.positions.items()}
        here = {number: v for v, number in in_first.items()}
        if wanted_in_first := [in_first[v] for v in wanted if v in in_first]:
            options["wanted"] = wanted_in_first
        name = f"stage_{operation.__name__}"
        results = _call_node(
            first, operation, name, _renumbered(args, in_first), options
        )
        return _renumbered(results, here)

    return cast(_Method, call)


def call_unoptimized(function: Any, args: Sequence[Any]) -> list[tf.Tensor]:
    """Adds a call of a concrete function that the graph optimizer leaves as it is.

    `args` are all inputs of the function, including the captured ones.
    """
    config = tf.compat.v1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    results = tf.raw_ops.StatefulPartitionedCall(
        args=args,
        Tout=[x.dtype for x in function.outputs],
        f=function,
        config_proto=config.SerializeToString(),
    )
    if not function.outputs:
        return []  # TensorFlow returns the operation.
    for result, x in zip(results, function.outputs, strict=True):
        result.set_shape(x.shape)
    return list(results)


def _call_node(
    owner: Any,
    method: Callable[..., Any],
    name: str,
    args: tuple,
    options: Mapping[str, Any],
) -> Any:
    """Calls a method of `owner` as one node of the graph. Traces it if it is new."""
    specs = map_present(spec_of, args)
    key = name, repr((specs, options))
    if key not in owner.functions:

        def flat_method(*flat: tf.Tensor) -> Any:
            return method(owner, *pack_present(specs, flat), **options)

        flat_method.__name__ = name
        node = tf.function(
            flat_method, autograph=False, experimental_attributes={"_noinline": True}
        )
        owner.functions[key] = _packed(node.get_concrete_function(*present(specs)))
    return owner.functions[key](args)


def _packed(concrete: Any) -> Callable[[Any], Any]:
    if concrete.outputs or effects(concrete.graph):
        return lambda args: concrete(*present(args))
    return lambda args: pack_present(concrete.structured_outputs, [])


def _renumbered(structures: Iterable[Any], numbers: Mapping[int, int]) -> tuple:
    """Replaces each key k of dicts by `numbers[k]`. Drops keys not in `numbers`."""
    return tuple(
        dict(sorted((numbers[k], x) for k, x in structure.items() if k in numbers))
        if isinstance(structure, dict)
        else structure
        for structure in structures
    )
