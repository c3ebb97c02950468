"""TensorFlow treats a NestedMap as a tree of tensors."""

from __future__ import annotations

import tensorflow as tf

from lingvo_pipe.nested_map import NestedMap


def batch() -> NestedMap:
    return NestedMap(
        label=tf.constant([1, 2]),
        image=NestedMap(pixels=tf.constant([[0.5], [1.5]]), sizes=[tf.constant(7)]),
        pair=(tf.constant(3), tf.constant(4)),
    )


def as_numbers(m: NestedMap) -> dict:
    return tf.nest.map_structure(lambda x: x.numpy().tolist(), m).ToNestedDict()


def test_flattening_agrees_but_for_tuples() -> None:
    m = batch()
    leaves = tf.nest.flatten(m)
    assert len(leaves) == 5
    own = [x for leaf in m.Flatten() for x in tf.nest.flatten(leaf)]
    assert all(a is b for a, b in zip(leaves, own, strict=True))
    assert [type(leaf) for leaf in m.Flatten()].count(tuple) == 1
    del m.pair
    tf.nest.assert_same_structure(m, m.Transform(lambda x: 0))


def test_map_structure_keeps_the_class() -> None:
    mapped = tf.nest.map_structure(lambda x: x + x, batch())
    assert type(mapped) is type(mapped.image) is NestedMap
    doubled = {"label": [2, 4], "image": {"pixels": [[1.0], [3.0]], "sizes": [14]}}
    assert as_numbers(mapped) == {**doubled, "pair": (6, 8)}


def test_functions_take_and_return_it() -> None:
    traces = []

    @tf.function
    def double(m: NestedMap) -> NestedMap:
        traces.append(m)
        assert type(m.image) is NestedMap
        doubled = tf.nest.map_structure(lambda x: x * 2, m)
        return NestedMap(out=doubled, label=m.label)

    for _ in range(2):
        result = double(batch())
        assert type(result) is type(result.out.image) is NestedMap
        assert as_numbers(result.out)["pair"] == (6, 8)
    assert len(traces) == 1


def test_loops_and_gradients_carry_it() -> None:
    @tf.function
    def power(m: NestedMap) -> NestedMap:
        step = tf.constant(0)
        total = m.Transform(tf.ones_like)
        while step < 3:
            total = NestedMap(x=total.x * m.x)
            step += 1
        return total

    theta = NestedMap(x=tf.constant(2.0))
    with tf.GradientTape() as tape:
        tape.watch(theta.Flatten())
        value = power(theta).x
    gradient = tape.gradient(value, theta)
    assert type(gradient) is NestedMap
    assert (float(value), float(gradient.x)) == (8.0, 12.0)


def test_data_sets_have_it_as_element() -> None:
    m = batch()
    del m.pair, m.image["sizes"]
    data = tf.data.Dataset.from_tensor_slices(m)
    data = data.map(lambda e: NestedMap(y=e.image.pixels * 2, **e)).batch(2)
    element = next(iter(data))
    assert type(element) is type(element.image) is NestedMap
    assert element.y.numpy().tolist() == [[1.0], [3.0]]
    assert type(data.element_spec) is NestedMap


def test_modules_find_the_variables_in_it() -> None:
    module = tf.Module()
    module.theta = NestedMap(w=tf.Variable(1.0), sub=NestedMap(b=[tf.Variable(2.0)]))
    assert [float(v) for v in module.variables] == [2.0, 1.0]
