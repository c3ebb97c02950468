"""Values with their masks and logits are read from the names of a step's results."""

from __future__ import annotations

import tensorflow as tf

from lingvo_pipe.keras.cells.triples import tensors_by_name, triples_of


def test_triples_are_in_the_names_of_their_tensors() -> None:
    """An earlier trace's triples told which there are, if in evaluation it had more."""
    value, mask, logits = (tf.constant([float(i)]) for i in range(3))
    triples = [value, None, {"Softmax": logits}, logits, mask, None]
    tensors = tensors_by_name(triples)
    assert len(tensors) == 4
    flat = tf.nest.flatten(triples_of({"loss0": mask, **tensors}))
    pairs = zip(flat, tf.nest.flatten(triples), strict=True)
    assert all(a is b for a, b in pairs)
