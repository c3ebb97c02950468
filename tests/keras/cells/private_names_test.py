"""Each private name of Keras is there, and does what this package expects of it."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from lingvo_pipe.keras.cells import private_names
from tests.keras.toy_models import fit, sequential


def _model() -> keras.Model:
    x = keras.Input((4,), name="x")
    y = keras.layers.Dense(3, activity_regularizer="l2", name="dense")(x)
    return keras.Model({"x": x}, [y + 1.0])


def test_a_graph_is_run_node_by_node() -> None:
    model = _model()
    assert private_names.is_graph(model)
    assert private_names.graph_of(model) is model
    nodes = list(private_names.nodes_in_order(model))
    assert nodes[0].operation.name == "dense"
    assert len(nodes) == 2
    assert len(private_names.output_structure(model)) == 1
    (x,) = private_names.standardized_inputs(model, {"x": np.ones((2, 4))})
    assert x.dtype == tf.float32
    inner = private_names.graph_of(sequential())
    assert len(list(private_names.nodes_in_order(inner))) == 1


def test_masks_are_attributes_of_tensors() -> None:
    x, mask = tf.ones([2, 3]), tf.ones([2], tf.bool)
    assert private_names.get_mask(x) is None
    private_names.set_mask(x, mask)
    assert private_names.get_mask(x) is mask


def test_logits_are_attributes_of_tensors() -> None:
    logits = tf.constant([[1.0, 2.0]])
    found = keras.activations.softmax(logits)
    assert private_names.get_logits(found) is logits
    other = tf.identity(found)
    assert private_names.get_logits(other) is None
    private_names.set_logits(other, logits)
    np.testing.assert_array_equal(
        keras.losses.categorical_crossentropy([[0.0, 1.0]], other),
        keras.losses.categorical_crossentropy([[0.0, 1.0]], logits, from_logits=True),
    )


def test_an_operation_is_told_whether_it_trains() -> None:
    dropout = keras.layers.Dropout(0.5)
    x = tf.ones([50])
    for training in (False, True):
        found = private_names.run_operation(dropout, training, (x,), {})
        assert bool(tf.reduce_all(found == x)) is not training


def test_losses_of_a_call_are_forgotten() -> None:
    model = _model()
    model({"x": tf.ones([2, 4])})
    assert model.losses
    private_names.forget_losses(model)
    assert not model.losses


def test_the_global_seed_moves_when_a_draw_has_no_other() -> None:
    before = private_names.global_seed().numpy()
    keras.random.normal((2,))
    assert not np.array_equal(before, private_names.global_seed().numpy())


def test_storage_of_a_variable_can_be_replaced() -> None:
    variable = keras.Variable(tf.ones([2]))
    other = tf.Variable([5.0, 6.0])
    private_names.place_variable(variable, other)
    assert private_names.stored_variable(variable) is other
    variable.assign([7.0, 8.0])
    np.testing.assert_array_equal(other, [7.0, 8.0])


def test_a_variable_can_be_made_later() -> None:
    waiting = private_names.uninitialized_variables()
    assert waiting == []
    with keras.StatelessScope(initialize_variables=False):
        variable = keras.Variable("ones", shape=(2,))
    assert private_names.uninitialized_variables() == [variable]
    private_names.uninitialized_variables().clear()
    assert private_names.stored_variable(variable) is None
    private_names.initialize_variable(variable)
    np.testing.assert_array_equal(private_names.stored_variable(variable), [1.0, 1.0])
    private_names.set_initializer(variable, lambda: tf.constant([2.0, 3.0]))
    assert private_names.stored_variable(variable) is None
    np.testing.assert_array_equal(variable.value, [2.0, 3.0])


def test_a_compilation_lists_its_losses_and_metrics() -> None:
    model = sequential()
    model.compile("sgd", loss="mse", metrics=["mae"])
    fit(model)
    (loss,) = private_names.flat_losses(model._compile_loss)
    assert loss.reduction == "sum_over_batch_size"
    other = private_names.with_losses(model._compile_loss, [lambda *unused: 7.0])
    assert other(np.ones((2, 3)), np.ones((2, 3))) == 7.0
    assert private_names.flat_losses(model._compile_loss) == [loss]
    (metric,) = model._compile_metrics.metrics
    assert private_names.metric_function(metric)[0] is not None
    assert private_names.metric_function(keras.metrics.Mean()) == (None, {})
    accuracy = keras.metrics.BinaryAccuracy(threshold=0.2)
    assert private_names.metric_function(accuracy)[1] == {"threshold": 0.2}
    assert metric.name == "mae"
    given = private_names.compile_arguments(model)
    assert (given["loss"], given["metrics"]) == ("mse", ["mae"])
    assert given["optimizer"] is model.optimizer
    assert not given.keys() & {"steps_per_execution", "jit_compile"}
    model.compile("adam")
    kept = private_names.kept_arguments(model)
    assert (kept["loss"], kept["metrics"]) == ("mse", ["mae"])
    assert kept["optimizer"] is model.optimizer


def test_attributes_are_metrics_too() -> None:
    model = sequential()
    model.compile("sgd", loss="mse")
    model.extra = extra = keras.metrics.Mean()
    assert private_names.attribute_metrics(model) == [extra]
    assert private_names.trainer_metrics(model) == model.metrics
    assert model.metrics[-1] is extra


def test_variables_are_those_of_all_layers() -> None:
    model = keras.Sequential(
        [sequential(keras.layers.Dropout(0.5), keras.layers.BatchNormalization())]
    )
    layers = private_names.flat_layers(model)
    variables = [v for layer in layers for v in private_names.own_variables(layer)]
    assert {*map(id, variables)} == {*map(id, model.variables)}
    assert len(variables) == len(model.variables)


def test_a_model_knows_the_strategy_of_its_scope() -> None:
    strategy = tf.distribute.OneDeviceStrategy("cpu:0")
    assert private_names.strategy_of(sequential()) is None
    with strategy.scope():
        assert private_names.strategy_of(sequential()) is strategy
