"""The layer and the pipeline on the pages do what the pages say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lingvo_pipe.cli.model_request import ModelRequest
from lingvo_pipe.training.run.metrics_log import read_metrics
from tests.docs.pages import (
    PAGES,
    README,
    ROOT,
    page,
    python_blocks,
    trainer_commands,
)
from tests.support.command_line import CommandLine, saved_variables
from tests.support.presets import write_preset

# Batches that four micro-batches do not divide, and what the means must be by hand.
CHECK_LAYER = """
import numpy as np

def loss_fn(outputs, targets):
    return lp.NestedMap(loss=(tf.reduce_mean(outputs**2), 1.0))

devices = lp.initialize_devices(2)
centering = CenteringLayer.Params().Set(dim=3)
p = lp.PipeliningLayer.Params().Set(name="pipe", cell_tpl=[centering] * 2)
layer = p.Set(splits=2, devices=devices, num_micro_batches=4).Instantiate()
x = np.random.default_rng(1).normal(size=[10, 3]).astype("float32")
target = tf.zeros([10])
first, second = layer.vars.cells
first.w.assign([2.0, 3.0, 4.0])
for _ in range(2):
    before = first.mean.numpy(), second.mean.numpy()
    result = layer.ComputeGradients(layer.theta, [x], target, loss_fn)
    layer.PostTrainingStepUpdate(result.accumulated)
    inner = (x - before[0]) * [2.0, 3.0, 4.0]
    for variable, old, given in zip((first.mean, second.mean), before, (x, inner)):
        want = old + 0.1 * (given.mean(axis=0) - old)
        np.testing.assert_allclose(variable, want, rtol=1e-5, atol=1e-6)
outputs = layer(x)
meta = CenteringLayer.FPropMeta(centering, tuple(x.shape))
assert meta.out_shapes == (tuple(outputs.shape),)
assert meta.flops >= 2 * 10 * 3
"""

# The gradients are the plain layers', by both ways, and training lowers the loss.
CHECK_PIPELINE = """
import numpy as np

def plain_loss():
    outputs = x
    for cell in layer.cells:
        outputs = cell(outputs)
    return tf.reduce_mean(tf.square(outputs - y))

assert layer.num_stages == 2
with tf.GradientTape() as tape:
    now = plain_loss()
want = tape.gradient(now, tf.nest.flatten(layer.vars))
assert float(now) < float(first_loss)
np.testing.assert_allclose(loss, now, rtol=1e-5)
again = layer.ComputeGradients(layer.theta, [x], y, squared_error)
for found in (gradients, tf.nest.flatten(again.gradients)):
    for a, b in zip(found, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
"""

CHECK_AUTO = """
assert p.schedule != "auto" and len(p.splits) == 2 * p.stages_per_device
planned.ComputeGradients(planned.theta, [x], y, squared_error)
"""

# Keras has trained weights of its own, which began as those of the layer.
CHECK_KERAS = """
before = squared_error(layer(x), y).loss[0]
assert float(squared_error(model(x), y).loss[0]) < float(before)
np.testing.assert_allclose(before, now, rtol=1e-5)
"""

CHECK_TUNED = """
tuned = keras_hub.models.CausalLM.from_preset("tuned")
assert tuned.preprocessor.sequence_length == 64
assert len({v.value.device for v in quantized.model.weights}) == 2
assert "int8" in {v.dtype for v in quantized.model.weights}
"""

CHECK_CUT = """
assert len({v.value.device for v in images.model.weights}) == 2
"""

CHECK_BUILDER = """
import numpy as np

plain = model.Instantiate()
values = [v.numpy() for v in plain.VariablePaths().values()]
for variable, value in zip(layer.VariablePaths().values(), values, strict=True):
    variable.assign(value)
x = tf.random.stateless_normal([64, 8], [1, 2])
np.testing.assert_allclose(layer(x), plain(x), rtol=1e-5, atol=1e-6)
assert layer.num_stages == 2 and outputs.shape == (64, 8)
assert abs(float(initial) - 8**-0.5 * 4000**-1.5) < 1e-10
"""


def _run(folder: Path, code: str) -> None:
    program = CommandLine(folder).start("-c", code)
    _, errors = program.communicate()
    assert program.returncode == 0, errors


@pytest.mark.exhaustive
def test_the_notebook_learns(tmp_path: Path) -> None:
    cells = json.loads((ROOT / "lingvo_pipe/docs/first_run.ipynb").read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    without_window = "import matplotlib; matplotlib.use('agg')"
    _run(tmp_path, "\n".join([without_window, *code, "assert test['accuracy'] > 0.8"]))


@pytest.mark.exhaustive
def test_runs_from_python(tmp_path: Path) -> None:
    ((_, code),) = python_blocks(page("runs"))
    few = code.replace("max_steps=100", "max_steps=1").replace("/tmp", str(tmp_path))
    _run(tmp_path, few + "assert rows[-1]['accuracy'] == test['accuracy']")


def test_the_layer_keeps_the_mean_of_all_examples(tmp_path: Path) -> None:
    (_, code), _ = python_blocks(page("layers"))
    _run(tmp_path, code + CHECK_LAYER)


def test_a_model_trains_the_layer(tmp_path: Path) -> None:
    blocks = [*python_blocks(README), *python_blocks(page("layers"))]
    (tmp_path / "my_models").mkdir()
    for path, code in blocks:
        if path:
            (tmp_path / path).write_text(code)
    (command,) = trainer_commands(page("layers"))
    model, _ = command.split()
    CommandLine(tmp_path).train(model, "--logdir=run", "--max_steps=2")
    trained = saved_variables(tmp_path / "run", 2)
    assert [path for path in trained if path.endswith("mean")]


@pytest.mark.exhaustive
def test_the_pipeline_without_the_trainer_learns(tmp_path: Path) -> None:
    train, tape, auto, fit = (code for _, code in python_blocks(page("pipelines")))
    check = CHECK_PIPELINE + auto + CHECK_AUTO + fit + CHECK_KERAS
    _run(tmp_path, train + "first_loss = loss\n" + tape + check)


# What the programs save is a plain Keras model.
SAVED_STEPS = "keras.models.load_model('model.keras').optimizer.iterations"


def test_the_keras_model_of_the_readme_is_trained(tmp_path: Path) -> None:
    (_, of_readme), _ = python_blocks(README)
    _run(tmp_path, of_readme + f"assert {SAVED_STEPS} == 8\n")


@pytest.mark.exhaustive
def test_the_keras_model_of_the_page_is_trained(tmp_path: Path) -> None:
    (_, of_page), _ = python_blocks(page("keras"))
    ((_, of_table),) = python_blocks(page("keras_table"))
    _run(tmp_path, of_page + f"assert {SAVED_STEPS} == 4\n" + of_table)


@pytest.mark.exhaustive
def test_pretrained_models_are_tuned(tmp_path: Path) -> None:
    """With a small preset, and images' weights that are random."""
    pytest.importorskip("keras_hub")  # It needs Python 3.11.
    text = page("pretrained").replace(
        "gemma_2b_en", write_preset(tmp_path / "g", "Gemma")
    )
    assert text.count('"imagenet"') == 1
    *blocks, images = (code for _, code in python_blocks(text))
    code = "\n".join(
        [*blocks, CHECK_TUNED, images.replace('"imagenet"', "None"), CHECK_CUT]
    )
    _run(tmp_path, code)


@pytest.mark.exhaustive
def test_a_keras_model_is_trained_by_the_trainer(tmp_path: Path) -> None:
    _, (path, code) = python_blocks(page("keras"))
    (tmp_path / path).parent.mkdir()
    (tmp_path / path).write_text(code)
    (command,) = trainer_commands(page("keras"))
    asked = [flag for flag in command.split() if not flag.startswith("--logdir")]
    CommandLine(tmp_path).train(*asked, f"--logdir={tmp_path / 'run'}")
    *_, test = read_metrics(tmp_path / "run")
    assert test["sparse_categorical_accuracy"] > 0.9


def test_a_model_of_a_builder_is_cut(tmp_path: Path) -> None:
    ((_, code),) = python_blocks(page("lingvo"))
    _run(tmp_path, code + CHECK_BUILDER)


@pytest.mark.exhaustive
def test_a_registered_model_reads_images_in_folders(tmp_path: Path) -> None:
    """walk_test.py trains the page's own model with them."""
    text = page("images").replace("/tmp", str(tmp_path))
    _run(tmp_path, python_blocks(text)[0][1])
    (command,) = (x for x in trainer_commands(text) if "--dataset=my_digits" in x)
    request = dict(flag.split("=") for flag in command.split())
    p = ModelRequest(
        request["--model"], dataset=request["--dataset"], data_dir=request["--data_dir"]
    ).params("Test")
    assert len(list(p.input.Instantiate().EvalBatches().take(1))) == 1


def test_all_code_is_run() -> None:
    """Here, by other tests of this folder, or by tests/trainer."""
    found = {name: len(python_blocks(text)) for name, text in PAGES.items()}
    assert {name.rpartition("/")[2]: n for name, n in found.items() if n} == {
        "README.md": 2,
        "clusters.md": 1,
        "images.md": 4,
        "keras.md": 2,
        "keras_table.md": 1,
        "language_models.md": 3,
        "layers.md": 2,
        "lingvo.md": 1,
        "pipelines.md": 4,
        "pretrained.md": 3,
        "runs.md": 1,
        "text.md": 4,
    }
