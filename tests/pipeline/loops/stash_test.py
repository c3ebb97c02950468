"""Packed stashes: what is put into a slot is taken from it, on CPUs and GPUs alike."""

from __future__ import annotations

import pytest
import tensorflow as tf

from lingvo_pipe.pipeline.loops.stash import PackedStash

SPECS = [tf.TensorSpec([2, 3]), tf.TensorSpec([], tf.int32), tf.TensorSpec([0])]


@pytest.mark.parametrize("on_cpu", [True, False])
@pytest.mark.parametrize("num_tensors", [0, 1, 3])
def test_slots_are_independent(on_cpu: bool, num_tensors: int) -> None:
    stash = PackedStash(SPECS[:num_tensors], on_cpu)

    @tf.function(autograph=False)
    def run(first: list[tf.Tensor], second: list[tf.Tensor]) -> list[list[tf.Tensor]]:
        contents = stash.put(stash.empty(tf.constant(2)), tf.constant(1), first)
        contents = stash.put(contents, tf.constant(0), second)
        taken = []
        for slot in (1, 0):
            found, contents = stash.take(contents, tf.constant(slot))
            taken.append(found)
        contents = stash.put(contents, tf.constant(1), second)
        return [*taken, stash.take(contents, tf.constant(1))[0]]

    def tensors(value: int) -> list[tf.Tensor]:
        return [tf.fill(x.shape, tf.cast(value, x.dtype)) for x in SPECS[:num_tensors]]

    found = run(tensors(3), tensors(5))
    for got, expected in zip(found, [tensors(3), tensors(5), tensors(5)], strict=True):
        assert [x.dtype for x in got] == [x.dtype for x in expected]
        for x, y in zip(got, expected, strict=True):
            tf.debugging.assert_equal(x, y)
            assert x.shape == y.shape
