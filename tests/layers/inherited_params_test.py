"""What a layer's params take from its parent's."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.layers.inherited_params import hand_down
from lingvo_pipe.layers.sequential import SequentialLayer
from lingvo_pipe.layers.weight_init import WeightInit

DTYPES = [None, tf.float64, "bfloat16"]
CHOICES = list(itertools.product(DTYPES, DTYPES, [None, 3]))
INITS = [None, WeightInit.Constant(2.0)]


def sequence(sub: InstantiableParams, choice: tuple) -> InstantiableParams:
    return stated(SequentialLayer.Params().Set(name="seq", sub=[sub]), choice)


def stated(p: InstantiableParams, choice: tuple) -> InstantiableParams:
    dtype, fprop_dtype, seed = choice
    return p.Set(dtype=dtype, fprop_dtype=fprop_dtype, random_seed=seed)


@pytest.mark.parametrize("outer", [CHOICES[0], CHOICES[5], CHOICES[9], CHOICES[16]])
@pytest.mark.parametrize("parent", CHOICES)
def test_handed_down_a_layer_is_the_same_without_its_parent(
    parent: Any, outer: Any
) -> None:
    for own, init in itertools.product(CHOICES, INITS):
        leaf = stated(FCLayer.Params().Set(input_dim=2, output_dim=2), own)
        between = sequence(leaf, parent).Set(params_init=init)
        within = sequence(between, outer).Instantiate().sub[0].sub[0]
        without = sequence(hand_down(leaf, between), outer).Instantiate().sub[0]
        assert within.params == without.params


def test_handing_down_leaves_the_params_as_they_are() -> None:
    leaf, parent = FCLayer.Params(), FCLayer.Params().Set(random_seed=5)
    assert hand_down(leaf, parent) == FCLayer.Params().Set(random_seed=5)
    assert leaf == FCLayer.Params()
