"""Transfer from ImageNet to seven data sets: sizes, and restored weights."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

import model_registry
from lingvo_pipe.training.warm_start.init_rules import resolve_rules
from tests.registered_models.reduced_models import reduced_params

IMAGENET = "image.imagenet.AmoebaNetB557M"

# GPipe's table 4: examples to train on, classes. All but two are in the catalog.
TABLE_4 = {
    "Cifar10": ("cifar10", 50_000, 10),
    "Cifar100": ("cifar100", 50_000, 100),
    "StanfordCars": ("cars196", 8_144, 196),
    "OxfordPets": ("oxford_iiit_pet", 3_680, 37),
    "Food101": ("food101", 75_750, 101),
    "FgvcAircraft": ("image_folder:fgvc_aircraft", 6_667, 100),
    "Birdsnap": ("image_folder:birdsnap", 47_386, 500),
}


def _transfer(name: str) -> Any:
    return model_registry.GetParams(f"image.transfer.{name}", "Train")


def test_all_data_sets_have_a_model() -> None:
    model_registry.ImportAll()
    names = [n for n in model_registry.ListModels() if n.startswith("image.transfer.")]
    assert names == sorted(f"image.transfer.{name}" for name in TABLE_4)


@pytest.mark.parametrize("name", TABLE_4)
def test_sizes_are_those_of_the_paper(name: str) -> None:
    dataset, num_examples, num_classes = TABLE_4[name]
    params = _transfer(name)
    cells = {p.name: p for p in params.task.pipeline.cell_tpl}
    assert cells["head"].num_classes == num_classes
    assert cells["auxiliary_head"].classifier.num_classes == num_classes
    assert params.input.dataset == dataset
    assert params.input.num_logits == num_classes
    assert params.task.train.max_steps == round(100 * num_examples / 128)
    spec = params.input.Instantiate().element_spec
    assert spec.image.shape == [128, 480, 480, 3]


@pytest.mark.parametrize("name", TABLE_4)
def test_data_sets_are_in_the_catalog_or_in_folders(name: str) -> None:
    params = _transfer(name)
    folder = params.input.dataset.removeprefix("image_folder:")
    catalog = tfds.list_builders(with_community_datasets=False)
    assert (folder in catalog) == (folder == params.input.dataset)
    if folder in catalog:
        assert params.input.Instantiate().num_classes == TABLE_4[name][2]


def _shapes(params: Any) -> dict[str, Any]:
    """Returns the shapes of all variables, by path."""
    with tf.Graph().as_default():
        paths = params.task.Instantiate().VariablePaths()
        return {path: variable.shape for path, variable in paths.items()}


@pytest.mark.exhaustive
def test_all_but_the_softmax_layers_come_from_imagenet() -> None:
    here = _shapes(reduced_params("image.transfer.Birdsnap", NUM_CLASSES=7))
    there = _shapes(reduced_params(IMAGENET))
    rules = _transfer("Birdsnap").task.train.init_from_checkpoint_rules
    (restored,) = resolve_rules(rules, list(here))
    assert all(there[source] == here[path] for path, source in restored.names.items())
    assert here.keys() - restored.names.keys() == {
        path for path in here if here[path] != there[path]
    }
    assert sorted(restored.excluded) == [
        f"task/pipeline/{layer}/dense/{weight}"
        for layer in ("auxiliary_head/classifier", "head")
        for weight in ("b", "w")
    ]
