"""Cells of Keras models that functions return, for params that name the function.

    KerasCell.Params().Set(model=digits_cnn, arguments={"width": 16}, index=2)

The function is run once for each seed. Initial values are drawn when a cell creates its
variables. What the function sets, such as the weights of a file, waits in memory until
a task has copied it. For the variables of another task the function is run again.
"""

import contextlib
import functools
import hashlib
import json
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import keras
from keras import tree

from lingvo_pipe.keras.cells.calls import GraphTensor, calls_of
from lingvo_pipe.keras.cells.model_cells import ModelCells, model_cells
from lingvo_pipe.keras.cells.private_names import set_initializer, stored_if_given
from lingvo_pipe.keras.cells.refusals import check_model
from lingvo_pipe.pipeline.stage_choice.traced_cells import outside_graphs


class BuiltModel(NamedTuple):
    """A Keras model with uninitialized variables, and cells that create their own."""

    model: keras.Model
    cells: ModelCells
    # The values that the function sets, by the variable's index. See `free_values`.
    values: dict[int, Any]


_built: dict[tuple[Any, ...], BuiltModel] = {}


def built_model(
    function: Callable[..., keras.Model], arguments: Mapping[str, Any], seed: int | None
) -> BuiltModel:
    """Returns a function's model, the same object for the same arguments.

    Raises:
        ValueError: if the model cannot be cut into cells.
    """
    policy = keras.config.dtype_policy()
    key = function, repr(sorted(arguments.items())), seed or 0, policy.name
    if key not in _built:
        free_values()  # The same model with another seed may have them, too.
        values: dict[int, Any] = {}
        run = functools.partial(_run, function, arguments, policy, seed or 0, values)
        model, cells = run(_build)
        variables = model.variables
        for i in values:
            set_initializer(variables[i], functools.partial(_value, i, values, run))
        _built[key] = BuiltModel(model, cells, values)
    return _built[key]


def free_values() -> None:
    """Frees the values that functions have set. A function runs again to read one."""
    for built in _built.values():
        built.values.clear()


def _value(index: int, values: dict[int, Any], run: Callable[..., Any]) -> Any:
    if not values:
        run(_set_values)
    return values[index]


def fingerprint(model: keras.Model) -> str:
    """Returns a digest of a model's layers, settings and calls, without their code."""
    calls = [
        (type(x.operation).__name__, _settings(x.operation), x.args, x.kwargs, x.made)
        for x in calls_of(model).calls
    ]
    numbered = tree.map_structure(
        lambda x: x.number if isinstance(x, GraphTensor) else x, calls
    )
    text = json.dumps(numbered, default=lambda x: type(x).__name__)
    plain = json.loads(
        text, object_hook=lambda x: x.get("class_name") != "__lambda__" and x
    )
    text = json.dumps(plain, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _settings(operation: Any) -> dict[str, Any]:
    with contextlib.suppress(NotImplementedError, TypeError):  # It cannot be saved.
        return operation.get_config()
    return {}


def _run(
    function: Callable[..., keras.Model],
    arguments: Mapping[str, Any],
    policy: Any,
    seed: int,
    values: dict[int, Any],
    step: Callable[..., Any],
) -> Any:
    """Returns the result of a step, `_build` or `_set_values`, with this seed."""
    state = random.getstate()
    random.seed(seed)  # From it Keras draws the seeds that are not given.
    try:
        return outside_graphs(step, function, arguments, policy, values)
    finally:
        random.setstate(state)


def _build(
    function: Callable[..., keras.Model],
    arguments: Mapping[str, Any],
    policy: Any,
    values: dict[int, Any],
) -> tuple[keras.Model, ModelCells]:
    """Returns a function's model and its cells, and adds what it sets to `values`."""
    with _function_scope(policy) as scope:
        model = function(**arguments)
        check_model(model)
        # Within the scope, because the end of another one would draw all values.
        cells = model_cells(model, shares_variables=False)
    _add_values(values, scope, model)
    return model, cells


def _set_values(
    function: Callable[..., keras.Model],
    arguments: Mapping[str, Any],
    policy: Any,
    values: dict[int, Any],
) -> None:
    """Adds what a function sets to `values`, without making cells again."""
    with _function_scope(policy) as scope:
        model = function(**arguments)
    _add_values(values, scope, model)


@contextlib.contextmanager
def _function_scope(policy: Any) -> Iterator[keras.StatelessScope]:
    """Opens a scope in which variables take no memory but for what is set."""
    keras.config.set_dtype_policy(policy)
    with (
        keras.StatelessScope(initialize_variables=False) as scope,
        stored_if_given(scope),
    ):
        yield scope


def _add_values(
    values: dict[int, Any], scope: keras.StatelessScope, model: keras.Model
) -> None:
    set_values = map(scope.get_current_value, model.variables)
    values.update((i, x) for i, x in enumerate(set_values) if x is not None)
