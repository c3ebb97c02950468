"""Methods of which each call is one node of the graph.

Such a method is traced at its first call with arguments of certain shapes and dtypes,
as a function. Each call adds one node to the graph being built, or none if the function
computes nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeVar, cast

import tensorflow as tf

from lingvo_pipe.core.nests import map_present, pack_present, present, spec_of
from lingvo_pipe.pipeline.tracing.trace import effects

_Method = TypeVar("_Method", bound=Callable[..., Any])


class HasFunctions(Protocol):
    """An object that keeps traced functions of its methods, by name and arguments."""

    functions: dict[Any, Callable[[Any], Any]]


class OfKind(HasFunctions, Protocol):
    """An object that uses the functions of the first object of its kind.

    Each object numbers its values. Values at the same position correspond in all
    objects of a kind.
    """

    first: OfKind
    numbers: dict[int, int]  # By position.
    positions: dict[int, int]  # By number.


def out_of_line(method: _Method) -> _Method:
    """Decorates a method so that each call is one node of the graph.

    Positional arguments are nested tensors and None. Keyword arguments are constants of
    the traced function.
    """

    @functools.wraps(method)
    def call(self: HasFunctions, *args: Any, **options: Any) -> Any:
        def run(given: Any) -> Any:
            return method(self, *given, **options)

        return _call_node(self.functions, method.__name__, run, args, options)

    return cast(_Method, call)


def shared_by_kind(operation: _Method) -> _Method:
    """Decorates an operation like `out_of_line`. Identical stages share the function.

    Dicts among the arguments and results are values by number. `wanted` lists numbers
    of values. Values that the stage lacks are left out. Inside the function, values
    have the numbers of the first stage of the kind.
    """

    @functools.wraps(operation)
    def call(
        stage: OfKind, *args: Any, wanted: Iterable[int] = (), **options: Any
    ) -> Any:
        first = stage.first
        positions = [stage.positions[v] for v in wanted if v in stage.positions]
        if positions:
            options["wanted"] = [first.numbers[i] for i in positions]

        def run(given: Any) -> Any:
            results = operation(first, *_renumbered(given, first.numbers), **options)
            return _renumbered(results, first.positions)

        name = f"stage_{operation.__name__}"
        by_position = _renumbered(args, stage.positions)
        results = _call_node(first.functions, name, run, by_position, options)
        return _renumbered(results, stage.numbers)

    return cast(_Method, call)


def _call_node(
    functions: dict[Any, Callable[[Any], Any]],
    name: str,
    run: Callable[[Any], Any],
    args: Any,
    structure: Any,
) -> Any:
    """Calls `run` as a traced function. Traces it at the first call with such specs."""
    specs = map_present(spec_of, args)
    key = name, repr((specs, structure))
    if key not in functions:

        def flat_run(*flat: tf.Tensor) -> Any:
            return run(pack_present(specs, flat))

        flat_run.__name__ = name
        node = tf.function(
            flat_run, autograph=False, experimental_attributes={"_noinline": True}
        )
        functions[key] = _packed(node.get_concrete_function(*present(specs)))
    return functions[key](args)


def _packed(concrete: Any) -> Callable[[Any], Any]:
    """Returns a function of nested tensors and None that calls `concrete`.

    If `concrete` has no outputs and no effects, it is not called.
    """
    if concrete.outputs or effects(concrete.graph):
        return lambda args: concrete(*present(args))
    return lambda args: pack_present(concrete.structured_outputs, [])


def _renumbered(structures: Iterable[Any], numbers: Mapping[int, int]) -> tuple:
    """Replaces each key k of dicts by `numbers[k]`. Drops keys that `numbers` lacks."""
    return tuple(
        dict(sorted((numbers[k], x) for k, x in structure.items() if k in numbers))
        if isinstance(structure, dict)
        else structure
        for structure in structures
    )
