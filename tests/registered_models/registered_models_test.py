"""Properties of every registered model; new models are included by themselves."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import model_registry
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.serving.export import export_model
from lingvo_pipe.training.profiling.inspect_model import describe
from lingvo_pipe.training.step.several_steps import SeveralSteps
from lingvo_pipe.training.step.train_step import TrainStep
from lingvo_pipe.training.task.local_training import with_local_losses
from lingvo_pipe.training.task.task_params import plain_task
from model_registry import registry
from tests.registered_models.reduced_models import batches, reduced_params
from tests.support.cases import exhaustive

model_registry.ImportAll()
# Other tests of the same process may have registered models of their own.
MODELS = [x for x in model_registry.ListModels() if not x.startswith("tests.")]


def _unlike() -> list[str]:
    """Returns a model of each kind: many have the same reduced params."""
    found: dict[str, str] = {}
    for name in MODELS:
        task = reduced_params(name).task
        task.train.init_from_checkpoint_rules = {}  # The source of weights only.
        found.setdefault(task.ToText(), name)
    return list(found.values())


UNLIKE = _unlike()


def test_each_is_found_without_an_import() -> None:
    assert registry._names_in_files() == MODELS


# Modules whose models have the layers of others, of `image.digits`, `lm.text` and
# `mt.cldr`.
_COVERED = {"image.cifar", "image.imagenet", "lm.giant", "mt.wmt", "mt.multilingual"}
# Their params are long.
_DEEP = (
    *("lm.giant.L103", "lm.giant.L4", "lm.giant.L16"),
    *("mt.multilingual.T_32", "mt.multilingual.T_64"),
)
_WITH_LOCAL_LOSSES = "mt.cldr.TransformerTinyLocal"


def _first_of_each_module(without: set[str], *others: str) -> list[Any]:
    """Returns arguments of `parametrize`: all but these and `others` are exhaustive."""
    first = {name.rpartition(".")[0]: name for name in reversed(UNLIKE)}
    fast = [name for module, name in first.items() if module not in without]
    fast += others
    return [name if name in fast else exhaustive(name) for name in UNLIKE]


def test_models_are_registered() -> None:
    assert "image.digits.AmoebaNetDigits" in MODELS


@pytest.mark.parametrize(
    "name", [exhaustive(x) if x.startswith(_DEEP) else x for x in MODELS]
)
def test_params_survive_their_text(name: str) -> None:
    params = model_registry.GetParams(name, "Train")
    again = params.Copy()
    again.FromText(params.ToText())
    assert again == params


@pytest.mark.parametrize("name", MODELS)
def test_params_of_each_data_set_survive_their_text(name: str) -> None:
    cls = model_registry.GetClass(name)
    datasets = model_registry.GetDatasets(cls)
    assert {"Train", "Test"} <= set(datasets)
    for dataset in datasets:
        params, again = (getattr(cls(), dataset)() for _ in range(2))
        again.FromText(params.ToText())
        assert again == params


# Data sets with the splits train and validation; others have train and test.
_WITHOUT_TEST = ("imagenet2012", "food101")


def test_the_splits_that_are_read_exist() -> None:
    for name, split in itertools.product(MODELS, ("train", "test")):
        params = getattr(model_registry.GetClass(name)(), split.capitalize())()
        for data in params.data if "data" in params else [params]:
            if "dataset" in data:
                is_other = split == "test" and data.dataset in _WITHOUT_TEST
                assert data.split == ("validation" if is_other else split), name


# Of `image.digits`, tests/trainer/inspect_test.py describes the whole model.
_DESCRIBED = {"image.cifar", "image.imagenet", "image.digits"}


@pytest.mark.parametrize("name", _first_of_each_module(_DESCRIBED, _WITH_LOCAL_LOSSES))
def test_it_can_be_described(name: str, tmp_path: Path) -> None:
    model = reduced_params(name)
    model.input.data_dir = str(tmp_path)
    data = model.input.Instantiate()
    task_params = with_local_losses(model.task, data)
    text = describe(task_params, data)
    for cell in task_params.pipeline.cell_tpl:
        assert cell.name in text
    assert "total: " in text


@pytest.mark.parametrize("name", _first_of_each_module(_COVERED | {"image.digits"}))
def test_it_learns_something_in_a_step(name: str, tmp_path: Path) -> None:
    model = reduced_params(name)
    model.input.data_dir = str(tmp_path)
    task = with_local_losses(model.task, model.input.Instantiate()).Instantiate()
    step = (
        SeveralSteps(task) if task.params.train.steps_per_loop > 1 else TrainStep(task)
    )
    before = {k: v.numpy().tobytes() for k, v in step.State().items()}
    for metrics in step.Steps(list(itertools.islice(batches(model), 2))):
        assert math.isfinite(float(metrics.loss[0]))
    assert int(step.global_step) == 2
    same = [k for k, v in step.State().items() if v.numpy().tobytes() == before[k]]
    assert not same, "training changes all saved values"
    distinct = {variable.ref() for variable in tf.nest.flatten(task.vars)}
    assert len(distinct) == len(task.VariablePaths())


@pytest.mark.parametrize("name", _first_of_each_module(_COVERED))
def test_it_can_be_exported(name: str, tmp_path: Path) -> None:
    """Export once failed for drop-path with an unknown batch size."""
    model = reduced_params(name)
    model.input.data_dir = str(tmp_path)
    task = plain_task(model.task).Instantiate()
    batch = next(batches(model))
    spec = tf.nest.map_structure(tf.TensorSpec.from_tensor, batch)
    export_model(task, SimpleNamespace(element_spec=spec), tmp_path / "model")
    serve = tf.saved_model.load(str(tmp_path / "model")).signatures["serving_default"]
    _, inputs = serve.structured_input_signature
    flat = {key.replace(".", "_"): x for key, x in batch.FlattenItems()}
    with ForwardContext(do_eval=True):
        predictions = task.ComputePredictions(task.Values(), batch)
        expected = task.ServingOutputs(predictions)
    for rows in (1, len(batch.Flatten()[0])):
        found = serve(**{key: flat[key][:rows] for key in inputs})
        assert set(found) == set(expected)
        for key, value in expected.items():
            np.testing.assert_allclose(found[key], value[:rows], rtol=1e-4, atol=1e-5)
