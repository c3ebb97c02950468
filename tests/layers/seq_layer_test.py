"""Cells one after another, without a pipeline."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.activation import ActivationLayer
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.layers.seq_layer import SeqLayer
from lingvo_pipe.layers.sequential import SequentialLayer


def cells() -> list[InstantiableParams]:
    dims = [3, 5, 4, 2]
    return [
        FCLayer.Params().Set(name=f"fc{i}", input_dim=dims[i], output_dim=dims[i + 1])
        for i in range(3)
    ] + [ActivationLayer.Params().Set(activation="TANH")]


def test_it_computes_what_a_sequence_of_all_does() -> None:
    x = tf.random.stateless_normal([4, 3], [1, 2])
    whole = SequentialLayer.Params().Set(name="net", sub=cells()).Instantiate()
    meta = SequentialLayer.FPropMeta(whole.params, (4, 3))
    for num_before in range(5):
        before, after = cells()[:num_before], cells()[num_before:]
        p = SeqLayer.Params().Set(name="net", before_tpl=before, cell_tpl=after)
        layer = p.Instantiate()
        np.testing.assert_array_equal(layer(x), whole(x))
        assert list(layer.VariablePaths()) == list(whole.VariablePaths())
        assert SeqLayer.FPropMeta(p, (4, 3)) == meta


def test_children_are_named_for_where_they_stand() -> None:
    p = SeqLayer.Params().Set(name="net", before_tpl=cells(), cell_tpl=cells()[3:])
    assert [layer.path for layer in p.Instantiate().Descendants()] == [
        *("net", "net/fc0", "net/fc1", "net/fc2", "net/before_3", "net/cells_0")
    ]


def test_no_layers_return_the_inputs() -> None:
    layer = SeqLayer.Params().Set(name="net").Instantiate()
    assert layer(1, 2) == (1, 2)
    assert layer(None) is None
