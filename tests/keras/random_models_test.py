"""Random functional models train as by plain Keras, in the same bytes on any devices.

A layer that mixes examples by design is compared at one micro-batch. A quarter of the
models is compared on one device and on two, the others on two.
"""

from __future__ import annotations

import math

import pytest

from lingvo_pipe.testing.pipelined_equals_plain import assert_pipelined_equals_plain
from tests.keras.random_models import random_model
from tests.support.cases import seeds

_NUM_SEEDS = 16
_FAST = (42,)


@pytest.mark.parametrize("seed", seeds(_NUM_SEEDS, _FAST))
def test_a_random_model_is_plain_keras_own(
    seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    model = random_model(seed)
    print(model.names)
    mixes = model.uses("batch norm") or model.uses("centers")
    if mixes:
        assert_pipelined_equals_plain(
            model.make,
            model.data,
            model.compile_args,
            devices=(1,),
            num_micro_batches=(1,),
            seed=seed,
        )
    assert_pipelined_equals_plain(
        model.make,
        model.data,
        model.compile_args,
        devices=(2,) if seed % 4 else (1, 2),
        num_micro_batches=(4,),
        tolerance=math.inf if mixes else 1e-4,
        seed=seed,
    )
    assert ("may mix the examples" in caplog.text) == model.uses("centers")
