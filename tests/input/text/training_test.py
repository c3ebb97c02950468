"""Transformers on batches of text: packing changes nothing, runs resume exactly."""

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.hyperparams import Params
from lingvo_pipe.input.text.vocabulary import train_vocabulary
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.pipeline.devices import stage_devices  # noqa: F401  Asks for several.
from lingvo_pipe.training.loop.training_loop import train
from lingvo_pipe.training.optim.keras_optimizer import OptimizerParams
from lingvo_pipe.training.run.run_directory import RunDirectory
from lingvo_pipe.training.task.pipeline_inputs import configure_inputs
from tests.input.text.small_texts import (
    LANGUAGES,
    VOCAB_SIZE,
    language_model_input,
    sentences,
    translation_input,
    write_texts,
)
from tests.models.transformer.small_models import language_model_task, translation_task
from tests.support.cases import exhaustive

KINDS = {
    "translation": (translation_task, translation_input),
    "language model": (language_model_task, language_model_input),
}


@pytest.fixture
def folder(tmp_path):
    return write_texts(tmp_path)


def means(task, given):
    """Each metric's mean over an epoch."""
    totals: dict[str, float] = {}
    weights: dict[str, float] = {}
    for batch in given.EvalBatches():
        with ForwardContext(do_eval=True):
            metrics = task.ComputeMetrics(task.Values(), batch)
        for name, (mean, weight) in metrics.items():
            weights[name] = weights.get(name, 0.0) + float(weight)
            totals[name] = totals.get(name, 0.0) + float(mean) * float(weight)
    return {name: total / weights[name] for name, total in totals.items()}, weights


@pytest.mark.exhaustive
def test_packed_sentences_have_the_losses_of_sentences_alone(folder):
    task = translation_task(num_tokens=VOCAB_SIZE, num_layers=1).Instantiate()
    (packed, weights), (alone, others) = (
        means(task, translation_input(folder, packing=packing))
        for packing in (True, False)
    )
    assert weights == others
    for name in packed:
        np.testing.assert_allclose(packed[name], alone[name], rtol=1e-5)


def run(folder, kind, logdir, steps, pipeline=None, **values):
    tf.random.set_seed(0)
    make_task, make_input = KINDS[kind]
    p = make_task(num_tokens=VOCAB_SIZE)
    p.pipeline.Set(**(pipeline or {}))
    p.train.Set(learning_rate=0.05, optimizer=OptimizerParams("Adam"), max_steps=steps)
    p.train.save_interval_steps = 2
    given = make_input(folder, **values)
    configure_inputs(p, given)
    task = p.Instantiate()
    directory = RunDirectory(folder / logdir, "small")
    model = Params()
    model.Define("task", p, "")
    metrics = train(task, given, given, directory, model.ToText(), lambda _: None)
    return metrics, [v.numpy() for v in task.VariablePaths().values()]


# That batches of translations resume exactly is tested by themselves, too.
@pytest.mark.parametrize(
    "kind", [exhaustive("language model"), exhaustive("translation")]
)
def test_a_resumed_run_ends_in_the_same_bytes(folder, kind):
    whole, variables = run(folder, kind, "whole", 5)
    run(folder, kind, "parts", 3)
    resumed, others = run(folder, kind, "parts", 5)
    assert whole == resumed
    for one, other in zip(variables, others, strict=True):
        np.testing.assert_array_equal(one, other)


# That costs choose stages is tested with made-up models in the fast suite.
@pytest.mark.parametrize(
    "kind", [exhaustive("language model"), exhaustive("translation")]
)
def test_stages_that_are_chosen_train_to_the_same_bytes(folder, kind):
    devices = {"devices": ["cpu:0", "cpu:1"], "num_micro_batches": 2}
    (metrics, variables), (others, again) = (
        run(folder, kind, str(splits), 3, devices | {"splits": splits})
        for splits in (2, "auto")
    )
    assert metrics == others
    for one, other in zip(variables, again, strict=True):
        np.testing.assert_array_equal(one, other)
    written = RunDirectory(folder / "auto", "small").read_params()
    assert written is not None
    assert "task.pipeline.splits (str) : 'auto'" in written


@pytest.mark.exhaustive
def test_a_run_is_refused_under_another_vocabulary(folder):
    run(folder, "language model", "run", 2)
    texts = [text for name in LANGUAGES for text in sentences(name, 90)]
    other = train_vocabulary(texts, VOCAB_SIZE, LANGUAGES, character_coverage=1.0)
    (folder / "other.vocab").write_bytes(other)
    values = {"vocab_file": "other.vocab"}
    with pytest.raises(ValueError, match=r"/small\.vocab.*vocab_file.*/other\.vocab"):
        run(folder, "language model", "run", 4, **values)
