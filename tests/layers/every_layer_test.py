"""Properties of every layer."""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.core.errors import UserTypeError
from lingvo_pipe.layers.batch_norm import BatchNormLayer
from lingvo_pipe.layers.builder_layers import ArgIndexLayer, FnLayer
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.layers.core.layer_tree import accumulator_paths
from lingvo_pipe.layers.local_loss import LocalLossLayer
from lingvo_pipe.layers.sequential import FetchLayer
from tests.layers.layer_examples import (
    ACTIVATIONS,
    EXAMPLES,
    example_inputs,
    example_layer,
    run,
)
from tests.layers.sliced_layers import weighted_sum
from tests.support.cases import exhaustive
from tests.support.errors import fails

IDENTITIES_AND_FUNCTIONS = (ArgIndexLayer, FetchLayer, FnLayer, LocalLossLayer)
# Larger examples of a cell of AmoebaNet.
LARGE = ("normal_cell", "first_cell_of_a", "reduction_cell_of_c")
# Differ from other examples in nothing but their function or inputs.
ALIKE = (*(f"activation_{name}" for name in ACTIVATIONS[2:]), "first_cell")


def _examples(names: Iterable[str], *left_out: str) -> pytest.MarkDecorator:
    """Parametrizes a test by examples, of which some are left to the exhaustive one."""
    cases = [exhaustive(x) if x in left_out else x for x in names]
    return pytest.mark.parametrize("example", cases)


every_example = _examples(EXAMPLES, *LARGE)
every_kind = _examples(EXAMPLES, *LARGE, *ALIKE)
every_kind_that_computes = _examples(
    [e for e, x in EXAMPLES.items() if x.params.cls not in IDENTITIES_AND_FUNCTIONS],
    *LARGE,
    *ALIKE,
)


@functools.cache
def shared_layer(example: str, **params: Any) -> Any:
    """Returns the layer of an example, for tests that leave it as it is."""
    return example_layer(example, **params)


def public_layers(package_name: str) -> set[type]:
    package, found = importlib.import_module(package_name), set()
    for info in pkgutil.iter_modules(package.__path__, f"{package_name}."):
        module = importlib.import_module(info.name)
        for name, value in inspect.getmembers(module, inspect.isclass):
            here = value.__module__ == info.name and not name.startswith("_")
            if here and issubclass(value, BaseLayer) and value is not BaseLayer:
                found.add(value)
    return found


def test_there_is_an_example_of_every_layer() -> None:
    layers = public_layers("lingvo_pipe.layers")
    layers |= public_layers("lingvo_pipe.models.amoebanet")
    assert len(layers) > 10
    assert layers == {example.params.cls for example in EXAMPLES.values()}


@every_kind
def test_params_survive_copies_and_texts(example: str) -> None:
    p = EXAMPLES[example].params.Copy().Set(name="root")
    read = p.cls.Params().FromText(p.ToText())
    assert read == p == p.Copy()
    p.Freeze()
    with fails(UserTypeError, path="name"):
        p.name = "other"
    thawed = p.Copy().Set(name="other")
    assert (p.name, thawed.name) == ("root", "other")
    layers = [params.Instantiate() for params in (p, read)]
    values = [layer.vars.Transform(lambda v: v.numpy()) for layer in layers]
    tf.nest.map_structure(np.testing.assert_array_equal, *values)
    assert not thawed.IsImmutable()
    assert layers[0].params.IsImmutable()


@every_example
def test_outputs_have_the_shapes_of_fprop_meta(example: str) -> None:
    layer, inputs = shared_layer(example), example_inputs(example)
    expected = [shape for shape in EXAMPLES[example].outputs if shape is not None]
    outputs = run(layer, layer.theta, inputs)
    assert [tuple(output.shape) for output in outputs] == expected
    assert {output.dtype for output in outputs} == {tf.float32}
    meta = type(layer).FPropMeta(EXAMPLES[example].params, *EXAMPLES[example].inputs)
    assert meta.out_shapes == tuple(EXAMPLES[example].outputs)


@every_kind
def test_inputs_may_be_arrays(example: str) -> None:
    layer, inputs = shared_layer(example), example_inputs(example)
    arrays = [None if x is None else x.numpy() for x in inputs]
    with ForwardContext(step=3, first_example=0):
        outputs = tf.nest.flatten(layer(*arrays))
    want = run(layer, layer.theta, inputs)
    present = [x for x in outputs if x is not None]
    tf.nest.map_structure(np.testing.assert_array_equal, present, want)


def is_floating(x: tf.Tensor | None) -> bool:
    return x is not None and x.dtype.is_floating


@every_example
def test_gradients_are_finite_differences(example: str) -> None:
    layer = shared_layer(example, dtype=tf.float64)
    inputs = example_inputs(example, tf.float64)
    variables = tf.nest.flatten(layer.vars)
    values = [*tf.nest.flatten(layer.theta), *filter(is_floating, inputs)]

    def loss(*values: tf.Tensor) -> tf.Tensor:
        theta = layer.vars.Pack(values[: len(variables)])
        remaining = iter(values[len(variables) :])
        args = [next(remaining) if is_floating(x) else x for x in inputs]
        return weighted_sum(run(layer, theta, args))

    with tf.GradientTape() as tape:
        tape.watch(values)
        y = loss(*values)
    gradients = tape.gradient(y, values, unconnected_gradients="zero")
    compiled = tf.function(loss, autograph=False)
    for i, (value, gradient) in enumerate(zip(values, gradients, strict=True)):
        if i < len(variables) and not variables[i].trainable:
            continue
        direction = tf.random.stateless_normal(value.shape, [i, 7], dtype=value.dtype)
        sides = [
            compiled(*values[:i], value + step * direction, *values[i + 1 :])
            for step in (-1e-6, 1e-6)
        ]
        difference = (sides[1] - sides[0]) / 2e-6
        slope = float(tf.reduce_sum(gradient * direction))
        assert slope == pytest.approx(float(difference), rel=1e-4, abs=1e-7)
        assert i >= len(variables) or np.any(gradient), variables[i].name


@every_kind
def test_evaluation_is_deterministic_and_knows_no_step(example: str) -> None:
    layer, inputs = shared_layer(example), example_inputs(example)
    unknown = {"step": None, "first_example": None, "do_eval": True}
    first = run(layer, layer.theta, inputs, **unknown)
    for second in (
        run(layer, layer.theta, inputs, **unknown),
        run(layer, layer.theta, inputs, do_eval=True, step=8, first_example=2),
    ):
        tf.nest.map_structure(np.testing.assert_array_equal, first, second)


def halves(layer: Any, inputs: list[Any], **context: Any) -> list[np.ndarray]:
    parts = [
        run(
            layer,
            layer.theta,
            [None if x is None else x[start : start + 2] for x in inputs],
            first_example=start,
            **context,
        )
        for start in (0, 2)
    ]
    return [np.concatenate(pair) for pair in zip(*parts, strict=True)]


@every_kind
def test_examples_know_nothing_of_each_other(example: str) -> None:
    """Batch norm in training is excepted."""
    layer = shared_layer(example, dtype=tf.float64)
    inputs = example_inputs(example, tf.float64)
    mixes = any(isinstance(d, BatchNormLayer) for d in layer.Descendants())
    for context in [{"do_eval": True}, {"do_eval": False}][: 1 if mixes else 2]:
        whole = run(layer, layer.theta, inputs, **context)
        parts = halves(layer, inputs, **context)
        for a, b in zip(whole, parts, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


@every_kind
def test_bfloat16_is_float32_except_rounding(example: str) -> None:
    wide = shared_layer(example)
    narrow = shared_layer(example, fprop_dtype=tf.bfloat16, dtype=tf.float32)
    inputs = example_inputs(example, tf.bfloat16)
    with tf.GradientTape() as tape:
        theta = narrow.theta
        outputs = run(narrow, theta, inputs)
        loss = weighted_sum([tf.cast(output, tf.float32) for output in outputs])
    assert {output.dtype for output in outputs} == {tf.bfloat16}
    for variable, value in zip(
        tf.nest.flatten(narrow.vars), tf.nest.flatten(theta), strict=True
    ):
        assert variable.dtype == tf.float32
        assert value.dtype == (tf.bfloat16 if variable.trainable else tf.float32)
    trained = [v for v in tf.nest.flatten(narrow.vars) if v.trainable]
    for gradient in tape.gradient(loss, trained):
        assert gradient.dtype == tf.float32
        assert np.all(np.isfinite(tf.convert_to_tensor(gradient)))
    inputs = [tf.cast(x, tf.float32) if is_floating(x) else x for x in inputs]
    for a, b in zip(run(wide, wide.theta, inputs), outputs, strict=True):
        error = np.linalg.norm(a - tf.cast(b, tf.float32)) / np.linalg.norm(a)
        assert error < 0.05


@every_kind_that_computes
def test_inputs_are_cast_to_fprop_dtype(example: str) -> None:
    layer = shared_layer(example, fprop_dtype=tf.bfloat16)
    outputs = run(layer, layer.theta, example_inputs(example))
    assert outputs[0].dtype == tf.bfloat16


@every_kind
def test_a_forward_pass_is_a_pure_function(example: str) -> None:
    """No variable is read or written but through theta; no stateful operation runs."""
    layer, inputs = shared_layer(example), example_inputs(example)
    function = tf.function(lambda theta, args: run(layer, theta, args), autograph=False)
    graph = function.get_concrete_function(layer.theta, inputs).graph
    assert not [t for t in graph.external_captures if t.dtype == tf.resource]
    library = graph.as_graph_def().library.function
    types = {op.type for op in graph.get_operations()} - {"Placeholder"}
    types |= {node.op for function in library for node in function.node_def}
    assert not [t for t in types if graph.op_def_for_type(t).is_stateful]


@every_kind
@pytest.mark.parametrize("do_eval", [False, exhaustive(True)])
def test_a_graph_computes_what_eager_execution_does(
    example: str, do_eval: bool
) -> None:
    layer, inputs = shared_layer(example), example_inputs(example)
    compiled = tf.function(
        lambda theta, args, step, first_example: run(
            layer, theta, args, step=step, first_example=first_example, do_eval=do_eval
        ),
        autograph=False,
    )
    position = [tf.constant(n, tf.int64) for n in (3, 0)]
    for a, b in zip(
        run(layer, layer.theta, inputs, do_eval=do_eval),
        compiled(layer.theta, inputs, *position),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@every_kind
def test_theta_and_accumulators_have_the_structure_of_vars(example: str) -> None:
    layer = shared_layer(example)
    tf.nest.assert_same_structure(layer.vars, layer.theta)
    assert list(layer.VariablePaths().values()) == [
        variable
        for descendant in layer.Descendants()
        for variable in descendant._variables.values()
    ]
    by_id = {id(variable): path for path, variable in layer.VariablePaths().items()}
    assert sorted(by_id) == sorted(map(id, tf.nest.flatten(layer.vars)))
    paths = list(accumulator_paths(layer))
    tree = layer.AccumulatedTree(dict(zip(paths, paths, strict=True)))
    tf.nest.assert_same_structure(layer.accumulators, tree)
    assert sorted(tf.nest.flatten(tree)) == sorted(paths)
