"""Training: what is not finite is never saved, and evaluation leaves padding out."""

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.hyperparams import Params
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.models.image_classifier import ImageClassifier
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.devices import stage_devices  # noqa: F401  Asks for several.
from lingvo_pipe.training.checkpoints import Checkpointer
from lingvo_pipe.training.evaluation import Evaluation
from lingvo_pipe.training.metrics_log import read_metrics
from lingvo_pipe.training.run_directory import RunDirectory
from lingvo_pipe.training.training_loop import train

BATCH, STEPS, CLASSES = 4, 3, 2


class Input:
    """Batches that are given; `batch_size` examples in each."""

    def __init__(self, *batches):
        self.params = Params()
        self.params.Define("batch_size", BATCH, "")
        self._batches = NestedMap(
            {name: np.stack([b[name] for b in batches]) for name in batches[0]}
        )

    def TrainBatches(self, start_step=0):
        return tf.data.Dataset.from_tensor_slices(self._batches).skip(start_step)

    def EvalBatches(self):
        return self.TrainBatches()


def batch(seed, scale=1.0, num_padding=0):
    random = np.random.default_rng(seed)
    return NestedMap(
        image=(scale * random.normal(size=[BATCH, 3])).astype(np.float32),
        label=random.integers(CLASSES, size=BATCH).astype(np.int32),
        weight=np.float32(np.arange(BATCH) < BATCH - num_padding),
    )


def make_task(**train_params):
    p = ImageClassifier.Params().Set(name="task")
    p.pipeline.Set(
        cell_tpl=[
            FCLayer.Params().Set(input_dim=3, output_dim=5, activation="RELU"),
            FCLayer.Params().Set(input_dim=5, output_dim=CLASSES),
        ],
        splits=2,
        num_micro_batches=2,
    )
    p.train.Set(learning_rate=0.1, max_steps=STEPS, save_interval_steps=1)
    p.train.Set(**train_params)
    return p.Instantiate()


def run(task, data, logdir, log=None):
    directory, test = RunDirectory(logdir, "toy.Toy"), Input(batch(9))
    return train(task, data, test, directory, "params\n", log or (lambda _: None))


def saved_steps(logdir):
    return Checkpointer(logdir / "checkpoints", {}).saved_steps()


def test_a_loss_that_is_not_finite_ends_training(tmp_path):
    data = Input(batch(0), batch(1), batch(2, scale=np.nan))
    with pytest.raises(FloatingPointError, match="at step 3 it is nan.*learning_rate"):
        run(make_task(), data, tmp_path)
    assert saved_steps(tmp_path) == [1, 2]
    # With data that can be learned from, the same directory goes on.
    said: list[str] = []
    data = Input(*map(batch, range(STEPS)))
    metrics = run(make_task(), data, tmp_path, said.append)
    assert "Resumed from step 2." in said
    assert read_metrics(tmp_path)[-1] == {"step": STEPS, "split": "test", **metrics}


def test_variables_that_are_not_finite_are_not_saved(tmp_path):
    data = Input(*[batch(step, scale=1e3) for step in range(STEPS)])
    with pytest.raises(
        FloatingPointError, match="after step 1 .* task/pipeline/cells_"
    ):
        run(make_task(learning_rate=1e38), data, tmp_path)
    assert saved_steps(tmp_path) == []


def test_batches_that_end_too_soon_are_told(tmp_path):
    with pytest.raises(ValueError, match="each of 3 steps; it ended after step 2"):
        run(make_task(), Input(batch(0), batch(1)), tmp_path)
    assert saved_steps(tmp_path) == [1, 2]


def test_what_does_not_fit_is_told_before_anything_is_written(tmp_path):
    small = NestedMap({name: value[:1] for name, value in batch(0).items()})
    with pytest.raises(ValueError, match="1 examples for 2 micro-batches"):
        run(make_task(), Input(small), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_evaluation_is_the_mean_over_all_examples_but_the_padding():
    task = make_task()
    batches = [batch(0), batch(1), batch(2, num_padding=3)]
    got = Evaluation(task)(Input(*batches).EvalBatches())

    first, second = (cell.vars for cell in task.pipeline.cells)
    images = np.concatenate([b.image for b in batches])
    labels = np.concatenate([b.label for b in batches])
    is_real = np.concatenate([b.weight for b in batches]) > 0
    hidden = np.maximum(images @ first.w.numpy() + first.b.numpy(), 0)
    logits = hidden @ second.w.numpy() + second.b.numpy()
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    losses = -log_probs[np.arange(len(labels)), labels]
    assert got == pytest.approx(
        {
            "loss": losses[is_real].mean(),
            "accuracy": (logits.argmax(-1) == labels)[is_real].mean(),
        },
        rel=1e-5,
    )


def test_evaluation_of_nothing_is_refused():
    with pytest.raises(ValueError, match="at least 1 batch"):
        Evaluation(make_task())([])
