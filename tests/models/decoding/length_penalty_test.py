"""The penalty is GNMT's."""

import numpy as np

from lingvo_pipe.models.decoding.length_penalty import length_penalties


def test_it_is_gnmts() -> None:
    got = length_penalties(0.6, 50)
    assert got.shape == (51,)
    for n in (0, 1, 7, 50):
        want = (5 + n) ** 0.6 / (5 + 1) ** 0.6
        np.testing.assert_allclose(got[n], want, rtol=1e-15)


def test_one_token_has_none() -> None:
    for alpha in (0.0, 0.6, 3.0):
        assert length_penalties(alpha, 3)[1] == 1.0


def test_without_alpha_there_is_none() -> None:
    assert length_penalties(0.0, 9).tolist() == [1.0] * 10


def test_it_grows_with_the_length() -> None:
    assert np.all(np.diff(length_penalties(1e-3, 1000).astype(np.float32)) >= 0)
