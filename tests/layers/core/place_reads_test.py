"""Reads of a layer's place are recorded, and the project's own layers make none."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest

from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.core.place_reads import PlaceReads
from lingvo_pipe.layers.sequential import SequentialLayer
from tests.layers.layer_examples import EXAMPLES, example_inputs, example_layer, run

PATH_READS: dict[str, Callable[[Any], Any]] = {
    "path": lambda layer: layer.path,
    "parent": lambda layer: layer.parent,
    "vars": lambda layer: layer.vars,
    "theta": lambda layer: layer.theta,
    "own_variables": lambda layer: layer.own_variables,
}
NAME_READS: dict[str, Callable[[Any], Any]] = {
    "attribute": lambda layer: layer.params.name,
    "Get": lambda layer: layer.params.Get("name"),
    "IterParams": lambda layer: dict(layer.params.IterParams()),
    "Copy": lambda layer: layer.params.Copy(),
    "ToText": lambda layer: layer.params.ToText(),
}


def _tree() -> Any:
    """Returns a layer with two children, numbers 1 and 2."""
    p = BaseLayer.Params()
    return SequentialLayer.Params().Set(name="root", sub=[p, p]).Instantiate()


@pytest.mark.parametrize("read", [*PATH_READS, *NAME_READS])
def test_a_read_is_recorded_of_the_layer_that_was_asked(read: str) -> None:
    layer, reads = _tree(), PlaceReads()
    ask = {**PATH_READS, **NAME_READS}[read]
    with reads.recording(layer):
        ask(layer.sub[1])
        ask(_tree())  # Another tree's.
    with pytest.raises(KeyError), reads.recording(_tree()):
        raise KeyError
    ask(layer.sub[0])  # Too late.
    assert reads.paths == ({2} if read in PATH_READS else set())
    assert reads.names == ({2} if read in NAME_READS else set())


def test_other_params_and_copies_reveal_no_name() -> None:
    layer, reads = _tree(), PlaceReads()
    copy, pickled = layer.params.Copy(), pickle.dumps(layer.params)
    with reads.recording(layer):
        assert layer.params.random_seed is not None
        assert copy.name == "root"
        assert pickle.loads(pickled) == copy
    assert not reads.names


@pytest.mark.parametrize("do_eval", [False, True])
@pytest.mark.parametrize("example", EXAMPLES)
def test_layers_of_the_project_read_no_place(example: str, do_eval: bool) -> None:
    layer, reads = example_layer(example), PlaceReads()
    theta, inputs = layer.theta, example_inputs(example)
    with reads.recording(layer):
        run(layer, theta, inputs, do_eval=do_eval)
    assert not reads.paths
    assert not reads.names
