"""The published preprocessing: sizes, ranges, and random in training alone."""

import pytest

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.input.transforms import recipes
from lingvo_pipe.input.transforms.transform_chain import TransformChain
from tests.input.transforms.many_seeds import random_image, run_chain

CASES = [
    (recipes.imagenet(24), (45, 60, 3), (24, 24, 3)),
    (recipes.cifar(), (32, 32, 3), (32, 32, 3)),
    (recipes.cifar(8), (32, 32, 3), (32, 32, 3)),
    (recipes.transfer(24), (45, 60, 3), (24, 24, 3)),
]


@pytest.mark.parametrize(("recipe", "before", "after"), CASES)
def test_sizes_and_values_are_as_expected(recipe, before, after):
    image = random_image(*before)
    for templates in recipe.values():
        assert TransformChain(templates, before).output_shape == after
        made = run_chain(templates, image)
        assert made.shape == after
        assert -1 <= made.min() < -0.5
        assert 0.5 < made.max() <= 1


@pytest.mark.parametrize(("recipe", "before", "after"), CASES)
def test_training_is_random_and_evaluation_is_not(recipe, before, after):
    image = random_image(*before)
    for name, templates in recipe.items():
        made = {run_chain(templates, image, number).tobytes() for number in range(10)}
        assert len(made) == (10 if name == "train_transforms" else 1)


@pytest.mark.parametrize(("recipe", "before", "after"), CASES)
def test_recipes_are_params_of_an_input_and_have_a_text(recipe, before, after):
    params = InstantiableParams()
    for name in recipe:
        params.Define(name, [], "")
    again = params.Copy().Set(**recipe)
    params.Set(**recipe).FromText(params.ToText())
    assert params == again


def test_sizes_of_training_and_evaluation_are_set_one_by_one():
    recipe = recipes.transfer(24)
    recipe["train_transforms"][0].height = 8
    assert recipe["eval_transforms"][0].height == 24
