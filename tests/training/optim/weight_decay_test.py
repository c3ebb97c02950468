"""Weight decay is the gradient of λ/2·Σw², for the variables it is asked for."""

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.hyperparams import Params
from lingvo_pipe.pipeline.devices import stage_devices  # noqa: F401  Asks for several.
from lingvo_pipe.training.optim.weight_decay import (
    add_l2_gradients,
    define_weight_decay_params,
    l2_weights,
)
from tests.support.errors import fails

PATHS = ["task/conv/w", "task/conv/b", "task/norm/beta", "task/norm/gamma"]
NOT_KERNELS = [("/(b|beta|gamma)$", 0.0)]


def weights(weight, scales=(), without=()):
    p = Params()
    define_weight_decay_params(p)
    return l2_weights(
        p.Set(l2_regularizer_weight=weight, l2_regularizer_scales=scales),
        PATHS,
        without,
    )


@pytest.mark.parametrize(
    ("weight", "scales", "want"),
    [
        (None, [], {}),
        (0.0, [], {}),
        (0.5, [], dict.fromkeys(PATHS, 0.5)),
        (0.5, NOT_KERNELS, {"task/conv/w": 0.5}),
        # The first that is found decides.
        (
            0.5,
            [("gamma", 3), ("norm", 0), ("b$", 2)],
            {"task/conv/w": 0.5, "task/conv/b": 1.0, "task/norm/gamma": 1.5},
        ),
    ],
)
def test_patterns_choose_weights(weight, scales, want):
    assert weights(weight, scales) == want


@pytest.mark.parametrize(
    ("weight", "scales"),
    [
        (None, NOT_KERNELS),
        (1.0, [("gama$", 0.0)]),
        (1.0, [("(gamma", 0.0)]),
        (1.0, [(3, 0.0)]),
    ],
)
def test_what_chooses_nothing_is_refused(weight, scales):
    with fails(path="task.train.l2_regularizer_scales"):
        weights(weight, scales)


def test_a_scale_for_weights_that_do_not_decay_by_their_layers_is_refused():
    norm = [path for path in PATHS if "norm" in path]
    with fails(path="task.train.l2_regularizer_scales", got=2.0):
        weights(1.0, [("norm/", 2.0)], norm)
    for scales in ([("norm/", 0.0)], [("/(gamma|b)$", 1.0)]):
        assert not weights(1.0, scales, norm).keys() & {*norm}


def test_it_is_the_gradient_of_the_loss():
    random = np.random.default_rng(0)
    variables = {}
    for i, path in enumerate(PATHS):
        with tf.device(f"CPU:{i}"):
            variables[path] = tf.Variable(random.normal(size=[3, 2]))
    given = {"task/conv/w": 0.3, "task/norm/gamma": 2.0}
    flat = list(variables.values())
    with tf.GradientTape(persistent=True) as tape:
        plain = tf.add_n([tf.reduce_sum(tf.sin(v)) for v in flat])
        decay = tf.add_n(
            [w * tf.nn.l2_loss(variables[path]) for path, w in given.items()]
        )
        total = plain + decay
    gradients = dict(zip(PATHS, tape.gradient(plain, flat), strict=True))
    got = add_l2_gradients(gradients, variables, given)
    for path, want in zip(PATHS, tape.gradient(total, flat), strict=True):
        np.testing.assert_allclose(got[path], want, rtol=1e-14)
    for path in given:
        assert got[path].device == variables[path].device
    assert got["task/conv/b"] is gradients["task/conv/b"]
