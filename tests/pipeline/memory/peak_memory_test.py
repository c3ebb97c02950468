"""The weights that layers share count once, on one replica."""

from __future__ import annotations

from typing import Any

from lingvo_pipe.layers.core.tied_variables import tying
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.layers.sequential import SequentialLayer
from lingvo_pipe.pipeline.memory.call_bytes import SharedWeight
from lingvo_pipe.pipeline.memory.peak_memory import shared_weights


def test_weights_are_shared_by_several_layers_of_one_replica() -> None:
    layers = [
        FCLayer.Params().Set(name=name, input_dim=2, output_dim=2) for name in "abc"
    ]
    with tying({"c/w": "a/w"}, "model"):
        model: Any = SequentialLayer.Params().Set(name="model", sub=layers)
        cells = model.Instantiate().children.sub
    assert shared_weights(cells) == [SharedWeight(2 * 2 * 4, [0, 2])]
    assert shared_weights(cells[:2]) == shared_weights(cells, num_replicas=2) == []
