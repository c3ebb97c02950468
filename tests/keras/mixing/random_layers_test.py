"""Random layers of several functions mix examples if one of their functions does."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

from lingvo_pipe.keras.mixing.mixing import mixing_layers
from tests.keras.mixing.own_functions import MIXING, SEPARATE, Own
from tests.support.cases import seeds

_NUM_SEEDS = 100
_FAST = (0, 3)
# Their thresholds are far: they come before functions with bounded results.
_FIRST = {"a hinge", "a maximum", "a mean of some"}


@pytest.mark.parametrize("seed", seeds(_NUM_SEEDS, _FAST))
def test_a_random_layer(seed: int) -> None:
    random = np.random.default_rng(seed)
    names = list(random.choice(list(SEPARATE), 2))
    mixes = random.random() < 0.5
    if mixes:
        place, mixing = random.integers(3), random.choice(list(MIXING))
        names.insert(0 if mixing in _FIRST else place, mixing)
    functions = [{**MIXING, **SEPARATE}[name] for name in names]

    def call(layer: Own, x: Any) -> Any:
        for function in functions:
            x = function(layer, x)
        return x

    x = keras.Input((4,))
    model = keras.Model(x, layers.Dense(2)(Own(call)(x)))
    assert mixing_layers(model) == ["own"] * mixes, names
