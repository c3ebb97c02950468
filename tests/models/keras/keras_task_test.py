"""A Keras model as a task trains as in `fit`, with the same bytes everywhere."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from lingvo_pipe.hyperparams import InstantiableParams, Params
from lingvo_pipe.keras.cells.model_cells import model_cells
from lingvo_pipe.keras.pipelined_model import PipelinedModel
from lingvo_pipe.models.keras.keras_task import KerasTask
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.devices import stage_devices  # noqa: F401  Asks for several.
from lingvo_pipe.planner.costs.traced_model import ModelTracer
from lingvo_pipe.training.loop.training_loop import train
from lingvo_pipe.training.optim.keras_optimizer import OptimizerParams
from lingvo_pipe.training.run.run_directory import RunDirectory
from lingvo_pipe.training.step.train_step import TrainStep
from tests.support.cases import exhaustive

BATCH, STEPS, STOPPED = 10, 6, 3


def convolutional(width: int = 4) -> keras.Model:
    x = image = keras.Input((6, 6, 1))
    x = layers.Conv2D(width, 3, use_bias=False, kernel_regularizer="l2")(x)
    x = layers.ReLU()(layers.BatchNormalization(momentum=0.8)(x))
    shared = layers.Dense(width, activation="tanh")
    x = layers.Dropout(0.3)(shared(shared(layers.GlobalMaxPooling2D()(x))))
    return keras.Model(image, layers.Dense(5)(x))


def masked() -> keras.Model:
    tokens = keras.Input((7,), dtype="int32")
    x = layers.Embedding(9, 6, mask_zero=True)(tokens)
    x = layers.MultiHeadAttention(2, 3)(x, x)
    return keras.Model(tokens, layers.Dense(9)(x))


def probabilities() -> keras.Model:
    dense = layers.Dense(5, activation="softmax")
    return keras.Sequential([keras.Input((6, 6, 1)), layers.Flatten(), dense])


def number() -> keras.Model:
    return keras.Sequential([keras.Input((3,)), layers.Dense(1)])


def one_head_twice() -> keras.Model:
    x, head = keras.Input((3,)), layers.Dense(2, name="head")
    return keras.Model(x, [head(x), layers.Dense(1, name="head_1")(x), head(2.0 * x)])


def squares(y: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(tf.square(y - outputs), -1)


def with_values() -> keras.Model:
    model = keras.Sequential([keras.Input((2,)), layers.Dense(1)])
    model.layers[0].set_weights([np.full((2, 1), 3.0), np.full(1, 4.0)])
    return model


def _params(model: Any = convolutional, **arguments: Any) -> InstantiableParams:
    p = KerasTask.ParamsOf(model, **arguments).Set(
        name="task",
        loss="SparseCategoricalCrossentropy",
        loss_arguments={"from_logits": True},
        metrics=["sparse_categorical_accuracy"],
    )
    p.pipeline.num_micro_batches = 4
    p.train.Set(learning_rate=0.1, max_steps=STEPS, save_interval_steps=1)
    return p


def _batch(step: int) -> NestedMap:
    random = np.random.default_rng(step)
    return NestedMap(
        image=random.normal(size=[BATCH, 6, 6, 1]).astype(np.float32),
        label=random.integers(5, size=BATCH).astype(np.int32),
        weight=np.ones(BATCH, np.float32),
    )


class _Input:
    """An input whose batches are functions of the step."""

    def __init__(self) -> None:
        self.params = Params()
        self.params.Define("batch_size", BATCH, "")
        self._batches = tf.nest.map_structure(
            lambda *x: np.stack(x), *map(_batch, range(STEPS))
        )

    def TrainBatches(self, start_step: int = 0) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices(self._batches).skip(start_step)

    def EvalBatches(self) -> tf.data.Dataset:
        return self.TrainBatches().take(1)


def _run(logdir: Path, **pipeline: Any) -> dict[str, bytes]:
    """Trains to the last step, and returns the bytes of its checkpoint."""
    model = Params()
    model.Define("task", _params(), "")
    model.task.train.Set(
        optimizer=OptimizerParams("Adam"), ema_decay=0.9, ema_decay_moving_vars=True
    )
    model.task.pipeline.Set(**pipeline)
    directory, data = RunDirectory(logdir, "mine.Model"), _Input()
    task = model.task.Instantiate()
    train(task, data, data, directory, model.ToText(), lambda _: None)
    reader = tf.train.load_checkpoint(str(logdir / f"checkpoints/ckpt-{STEPS:08d}"))
    names = reader.get_variable_to_shape_map()
    return {name: np.asarray(reader.get_tensor(name)).tobytes() for name in names}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, bytes]]:
    """An uninterrupted run in one stage, and its final bytes."""
    logdir = tmp_path_factory.mktemp("keras") / "whole"
    return logdir, _run(logdir)


_ZERO_BUBBLE = {"splits": 4, "schedule": "zero_bubble"}


@pytest.mark.exhaustive
def test_a_run_in_stages_ends_in_the_same_bytes(whole: Any, tmp_path: Path) -> None:
    assert _run(tmp_path, **_ZERO_BUBBLE) == whole[1]


@pytest.mark.exhaustive
@pytest.mark.parametrize("pipeline", [{"splits": 2, "schedule": "1f1b"}, _ZERO_BUBBLE])
def test_a_run_that_resumes_in_stages_ends_in_the_same_bytes(
    whole: Any, tmp_path: Path, pipeline: dict[str, Any]
) -> None:
    logdir, expected = whole
    resumed = shutil.copytree(logdir, tmp_path / "resumed")
    for step in range(STOPPED + 1, STEPS + 1):
        for path in (resumed / "checkpoints").glob(f"ckpt-{step:08d}*"):
            path.unlink()
    assert _run(resumed, **pipeline) == expected


def test_variables_have_the_names_of_kerass_layers(whole: Any) -> None:
    task = _params().Instantiate()
    paths = [path.removeprefix("task/pipeline/") for path in task.VariablePaths()]
    assert paths[:3] == ["conv2d/kernel", "conv2d/gamma", "conv2d/beta"]
    drawn = "dense_call1/seed_generator_state"  # After the shared layer's second call.
    assert paths[-5:] == [
        "dense/kernel",
        "dense/bias",
        drawn,
        "dense_1/kernel",
        "dense_1/bias",
    ]


def _variables(task: Any, model: keras.Model) -> list[tuple[Any, tf.Variable]]:
    """Returns pairs of a variable of the model and the task's for it."""
    cells = model_cells(model).cells.values()
    return [
        (v.variable, cell.vars[v.name])
        for calls, cell in zip(cells, task.pipeline.cells, strict=True)
        for v in calls.variables
    ]


def _fit(model: keras.Model, x: Any, y: Any, **options: Any) -> Any:
    """Trains by a step of SGD; by plain Keras if there are no options."""
    trained: Any = PipelinedModel(model, **options) if options else model
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    trained.compile(keras.optimizers.SGD(0.1), loss=loss)
    fit = trained.fit(x, y, batch_size=len(x), shuffle=False, verbose=0)
    return fit.history["loss"]


@pytest.mark.parametrize(
    "options",
    [{}, exhaustive({"devices": 2, "num_micro_batches": 4})],
    ids=["plain", "pipelined"],
)
def test_the_first_step_is_fits(options: dict[str, Any]) -> None:
    """Plain Keras has the moments of the whole mini-batch: one micro-batch."""
    p, model, batch = _params(), convolutional(), _batch(0)
    p.pipeline.num_micro_batches = options.get("num_micro_batches", 1)
    task = p.Instantiate()
    pairs = _variables(task, model)
    for theirs, own in pairs:
        theirs.assign(own)
    before = model.get_weights()
    loss = _fit(model, batch.image, batch.label, **options)
    metrics = TrainStep(task)(batch)
    own_loss = float(metrics.loss[0]) + float(metrics.keras_losses[0])
    np.testing.assert_allclose(own_loss, loss[0], rtol=1e-6)
    for theirs, own in pairs:
        np.testing.assert_allclose(theirs.numpy(), own.numpy(), rtol=0, atol=2e-7)
    for old, new in zip(before, model.get_weights(), strict=True):
        assert not np.array_equal(old, new)


def test_masks_and_weights_of_targets_count_as_in_keras() -> None:
    p = _params(masked).Set(inputs="ids", targets="ids", weights="weights")
    task, model = p.Instantiate(), masked()
    pairs = _variables(task, model)
    for theirs, own in pairs:
        theirs.assign(own)
    random = np.random.default_rng(2)
    ids = random.integers(0, 9, (BATCH, 7)).astype(np.int32)
    weights = random.integers(0, 2, (BATCH, 7)).astype(np.float32)
    # Keras divides by the mask alone; without weights both divide by it.
    loss = _fit(model, ids, ids)
    batch = NestedMap(ids=ids, weights=np.ones_like(weights))
    metrics = TrainStep(task)(batch)
    np.testing.assert_allclose(float(metrics.loss[0]), loss[0], rtol=1e-6)
    for theirs, own in pairs:
        np.testing.assert_allclose(theirs.numpy(), own.numpy(), rtol=0, atol=2e-7)
    half = task.ComputeMetrics(task.Values(), NestedMap(ids=ids, weights=weights))
    assert float(half.loss[1]) == np.sum(weights * (ids > 0))


def test_a_loss_of_probabilities_is_taken_from_their_logits() -> None:
    """Also where a probability is 0, as in plain Keras."""
    p = _params(probabilities).Set(loss_arguments={}, random_seed=3)
    task, model, batch = p.Instantiate(), probabilities(), _batch(0)
    for theirs, own in _variables(task, model):
        own.assign(100.0 * own)
        theirs.assign(own)
    expected = float(
        keras.losses.SparseCategoricalCrossentropy()(batch.label, model(batch.image))
    )
    metrics = task.ComputeMetrics(task.Values(), batch)
    np.testing.assert_allclose(float(metrics.loss[0]), expected, rtol=1e-5)
    assert expected > -np.log(1e-7)


def test_an_ignored_class_counts_nowhere() -> None:
    given = {"from_logits": True, "ignore_class": 2}
    task = _params(number).Set(loss_arguments=given).Instantiate()
    outputs = tf.constant(np.random.default_rng(0).normal(size=[6, 5]), tf.float32)
    y = tf.constant([0, 2, 1, 2, 4, 3])
    weights = tf.constant([1.0, 1.0, 1.0, 1.0, 1.0, 0.0])
    targets = NestedMap(targets=y, weights=weights)
    mean, weight = task.ComputeLoss((outputs, None, None), targets).loss
    loss = keras.losses.SparseCategoricalCrossentropy(**given)
    np.testing.assert_allclose(mean, loss(y[:5], outputs[:5]), rtol=1e-6)
    assert float(weight) == 3.0


@pytest.mark.parametrize("loss", ["mean_squared_error", "MeanSquaredError", squares])
def test_a_loss_is_a_name_or_a_function(loss: Any) -> None:
    p = _params(number).Set(loss=loss, loss_arguments={}, metrics=[])
    outputs, y = tf.constant([[1.0], [5.0], [2.0]]), tf.constant([2.0, 2.0, 9.0])
    targets = NestedMap(targets=y, weights=tf.constant([1.0, 3.0, 0.0]))
    mean, weight = p.Instantiate().ComputeLoss((outputs, None, None), targets).loss
    np.testing.assert_allclose(mean, (1.0 + 3 * 9.0) / 4)
    assert float(weight) == 4.0


def test_the_planner_knows_what_cells_cost() -> None:
    p, spec = (
        _params(),
        tf.nest.map_structure(lambda x: tf.TensorSpec(x.shape, x.dtype), _batch(0)),
    )
    tracer = ModelTracer(p, spec)
    costs = tracer.trace(3).costs
    model = convolutional()
    assert tracer.num_parameters == sum(
        int(np.prod(v.shape)) for v in model.trainable_variables
    )
    products = [3 * 4 * 4 * 9 * 4, 3 * 4 * 4, 3 * 4 * 4, 3 * 4 * 5]
    for flops, number in zip(costs.flops, products, strict=True):
        assert flops >= 2 * number
    assert costs.flops[0] == max(costs.flops)


def test_initial_values_follow_from_the_seed_alone() -> None:
    def values(seed: int, **arguments: Any) -> list[bytes]:
        p = _params(**arguments).Set(random_seed=seed)
        return [v.numpy().tobytes() for v in p.Instantiate().VariablePaths().values()]

    first = values(1)
    convolutional()
    assert values(1, width=4) == first  # Built anew, after another model.
    assert values(2)[0] != first[0]


def test_values_that_the_function_sets_are_the_initial_ones() -> None:
    task = _params(with_values).Instantiate()
    kernel, bias = task.VariablePaths().values()
    np.testing.assert_array_equal(kernel, [[3.0], [3.0]])
    np.testing.assert_array_equal(bias, [4.0])


def test_each_output_is_served() -> None:
    outputs = [tf.constant(float(i)) for i in range(3)]
    triples = [x for output in outputs for x in (output, None, None)]
    served = _params(one_head_twice).Instantiate().ServingOutputs(triples)
    assert list(served) == ["head", "head_1", "head_2"]
    assert list(served.values()) == outputs


def test_dropout_is_only_in_training() -> None:
    assert _params(convolutional).Instantiate().OnlyInTraining()
    assert not _params(probabilities).Instantiate().OnlyInTraining()


def test_two_tasks_have_variables_of_their_own() -> None:
    one, other = (_params().Instantiate() for _ in range(2))
    own = {v.ref() for v in tf.nest.flatten(one.vars)}
    assert not own & {v.ref() for v in tf.nest.flatten(other.vars)}


def test_a_subclass_has_its_own_loss() -> None:
    class Squares(KerasTask):
        def ComputeLoss(self, predictions: Any, targets: NestedMap) -> NestedMap:
            loss = tf.reduce_mean(self.Outputs(predictions) ** 2)
            return NestedMap(loss=(loss, tf.reduce_sum(targets.weights)))

    p = Squares.ParamsOf(convolutional).Set(name="task")
    p.train.learning_rate = 0.1
    loss, weight = TrainStep(p.Instantiate())(_batch(0)).loss
    assert float(loss) > 0.0
    assert float(weight) == BATCH
