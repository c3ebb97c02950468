"""Cells of Keras models that functions return, for params that name the function.

    KerasCell.Params().Set(model=digits_cnn, arguments={"width": 16}, index=2)

The function is run once. Initial values are drawn when a cell creates its variables.
"""

import contextlib
import hashlib
import json
import random
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import keras
from keras import tree

from lingvo_pipe.keras.cells.calls import GraphTensor, calls_of
from lingvo_pipe.keras.cells.model_cells import ModelCells, model_cells
from lingvo_pipe.keras.cells.private_names import place_variable, stored_if_given
from lingvo_pipe.keras.cells.refusals import check_model
from lingvo_pipe.pipeline.stage_choice.traced_cells import outside_graphs


class BuiltModel(NamedTuple):
    """A Keras model with uninitialized variables, and cells that create their own."""

    model: keras.Model
    cells: ModelCells


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
        state = random.getstate()
        random.seed(seed or 0)  # From it Keras draws the seeds that are not given.
        try:
            _built[key] = outside_graphs(_build, function, arguments, policy)
        finally:
            random.setstate(state)
    return _built[key]


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


def _build(
    function: Callable[..., keras.Model], arguments: Mapping[str, Any], policy: Any
) -> BuiltModel:
    keras.config.set_dtype_policy(policy)
    with (
        keras.StatelessScope(initialize_variables=False) as scope,
        stored_if_given(scope),
    ):
        model = function(**arguments)
        check_model(model)
        # Within the scope, because the end of another one would draw all values.
        cells = model_cells(model, shares_variables=False)
    for v in model.variables:
        value = scope.get_current_value(v)
        if value is not None:  # Set by the function, such as weights from a file.
            place_variable(v, value)
    return BuiltModel(model, cells)
