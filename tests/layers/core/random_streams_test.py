"""Random numbers depend on seed, layer, step and example, and on nothing else."""

from __future__ import annotations

import hashlib
import itertools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.layers.core.random_streams import (
    extend_hash,
    path_hash,
    seed_pair,
    uniform_rows,
)
from tests.support.errors import fails


def draw(
    shape: list[int],
    path: str = "a/b",
    seed: int = 0,
    step: int = 3,
    first_example: int = 0,
) -> np.ndarray:
    with ForwardContext(step=step, first_example=first_example) as context:
        return context.uniform(path, seed, shape).numpy()


def philox(key: int, counter: list[int]) -> list[int]:
    """Returns four 32-bit numbers by the published definition (Salmon et al. 2011)."""
    mask = 0xFFFFFFFF
    k = [key & mask, key >> 32]
    c = [counter[0] & mask, counter[0] >> 32, counter[1] & mask, counter[1] >> 32]
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & mask, (a >> 32) ^ c[3] ^ k[1], a & mask]
        k = [(k[0] + 0x9E3779B9) & mask, (k[1] + 0xBB67AE85) & mask]
    return c


@pytest.mark.parametrize("row_size", [1, 4, 7])
def test_numbers_are_those_of_the_definition(row_size: int) -> None:
    key, step, first_example = 0xFEDCBA9876543210, 2**40 + 1, 2**33 + 5
    blocks = -(-row_size // 4)
    expected = []
    for example in (first_example, first_example + 1):
        row: list[int] = []
        for block in range(blocks):
            row += philox(key, [example * blocks + block, step])
        expected.append([(bits >> 8) * 2.0**-24 for bits in row[:row_size]])
    actual = uniform_rows(
        tf.constant(key, tf.uint64),
        tf.constant(step, tf.int64),
        tf.constant(first_example, tf.int64),
        [2, row_size],
    )
    np.testing.assert_array_equal(actual, np.array(expected, np.float32))


def test_hashes_never_change_from_version_to_version() -> None:
    def name_hash(name: str) -> int:
        return int.from_bytes(hashlib.md5(name.encode()).digest()[:8], "little")

    assert path_hash("a") == name_hash("a") == 0xA8B6F1C0B975C10C
    expected = (name_hash("a") * 0x9E3779B97F4A7C15 + name_hash("b")) % 2**64
    assert path_hash("a/b") == expected
    assert seed_pair(-1, "a/b") == (2**63 - 1, expected % 2**63)
    np.testing.assert_allclose(
        draw([1, 3]), [[0.76285815, 0.36433107, 0.96781933]], 1e-7
    )


@pytest.mark.parametrize("path", ["", "a", "a/b", "a/b/c"])
@pytest.mark.parametrize("rest", ["", "d", "d/e"])
def test_a_prefix_may_be_a_tensor(path: str, rest: str) -> None:
    prefix = tf.constant(path_hash(path), tf.uint64)
    assert int(extend_hash(prefix, rest)) == path_hash(f"{path}/{rest}")
    assert path_hash(rest, path_hash(path)) == path_hash(f"{path}/{rest}")


def test_hashes_differ() -> None:
    paths = ["", "a", "b", "ab", "a/b", "b/a", "a/a", "a/b/c", "a/bc", "ab/c", "0", "1"]
    hashes = {path_hash(path) for path in paths}
    assert len(hashes) == len(paths)
    assert all(0 <= value < 2**64 for value in hashes)


@pytest.mark.parametrize("row_shape", [[], [1], [3], [4], [5, 7], [2, 3, 4]])
def test_rows_do_not_depend_on_how_the_batch_is_split(row_shape: list[int]) -> None:
    whole = draw([12, *row_shape])
    for sizes in ([1] * 12, [6, 6], [5, 4, 3]):
        starts = [0, *itertools.accumulate(sizes)]
        parts = [
            draw([size, *row_shape], first_example=start)
            for start, size in zip(starts, sizes, strict=False)
        ]
        np.testing.assert_array_equal(np.concatenate(parts), whole)
    assert len(np.unique(whole)) > 0.99 * whole.size


def test_streams_are_independent() -> None:
    n = 4096
    places: list[dict[str, Any]] = [
        {},
        *({"path": path} for path in ("a/c", "b/b", "b")),
        *({"seed": seed} for seed in (1, -1)),
        *({"step": step} for step in (4, 2**32 + 3)),
        *({"first_example": example} for example in (2, 2**33)),
    ]
    streams = [draw([2, n // 2], **place).ravel() for place in places]
    streams.append(draw([2, n // 2])[::-1].ravel())
    for a, b in itertools.combinations(streams, 2):
        assert abs(np.corrcoef(a, b)[0, 1]) < 5 / np.sqrt(n)
        assert np.mean(a == b) < 0.01
    for stream in streams:
        assert 0.0 <= stream.min() < 0.01
        assert 0.99 < stream.max() < 1.0
        assert abs(stream.mean() - 0.5) < 5 / np.sqrt(12 * n)
        assert abs(np.corrcoef(stream[:-1], stream[1:])[0, 1]) < 5 / np.sqrt(n)


def test_steps_far_apart_have_different_numbers() -> None:
    """A float would confuse them: 2^24 + 1 is not one."""
    for step in (256, 2**24, 2**53):
        assert np.all(draw([1, 8], step=step) != draw([1, 8], step=step + 1))


@pytest.mark.parametrize("name", ["step", "first_example"])
def test_places_must_be_integers(name: str) -> None:
    with fails(path="Step and example", got="float32"):
        draw([2, 3], **{name: 1.0})  # type: ignore[arg-type]


def rows_below(shape: list[int], below: float | None) -> np.ndarray:
    key, step, example = (
        tf.constant(n, t) for n, t in ((5, tf.uint64), (3, tf.int64), (7, tf.int64))
    )
    return uniform_rows(key, step, example, shape, below).numpy()


@pytest.mark.parametrize("limit", [1e-9, 0.5, 0.9, 1 - 2.0**-24, 1.0])
def test_numbers_below_a_limit_are_found_without_the_numbers(limit: float) -> None:
    numbers, shape = rows_below([50, 1001], None), [50, 1001]
    expected = numbers < max(np.float32(limit), np.float32(2.0**-24))
    np.testing.assert_array_equal(rows_below(shape, limit), expected)


def test_a_number_is_not_below_itself() -> None:
    number = rows_below([1, 1], None)[0, 0]
    assert not rows_below([1, 1], float(number))
    assert rows_below([1, 1], float(np.nextafter(number, np.float32(2))))
