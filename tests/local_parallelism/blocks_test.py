"""Every layer belongs to one block, and blocks match the paper's figure."""

from __future__ import annotations

from typing import Any

import pytest

from lingvo_pipe.local_parallelism.blocks import SCHEMES, Block, make_blocks
from tests.support.errors import fails


def _blocks(scheme: str, num_layers: int) -> list[Block]:
    return make_blocks(scheme, num_layers, 1 if scheme == "chunked" else None)


def test_four_layers_are_as_in_the_figure() -> None:
    assert make_blocks("backpropagation", 4) == [Block(0, 4)]
    assert make_blocks("chunked", 4, 2) == [Block(0, 2), Block(2, 4)]
    assert make_blocks("chunked", 4, [1, 4]) == [Block(0, 1), Block(1, 4)]
    assert make_blocks("greedy", 4) == [Block(k, k + 1) for k in range(4)]
    assert make_blocks("overlapping", 4) == [
        Block(0, 1, 1),
        Block(1, 2, 1),
        Block(2, 4),
    ]


@pytest.mark.parametrize("num_layers", [1, 2, 3, 11])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_each_layer_belongs_to_one_block(scheme: str, num_layers: int) -> None:
    blocks = _blocks(scheme, num_layers)
    passed_on = [k for block in blocks for k in range(block.begin, block.end)]
    assert passed_on == list(range(num_layers))
    assert blocks[-1].ahead == 0
    assert all(block.end + block.ahead <= num_layers for block in blocks)


@pytest.mark.parametrize("num_layers", [2, 3, 11])
def test_overlapping_blocks_are_all_pairs_of_neighbors(num_layers: int) -> None:
    pairs = [(b.begin, b.end + b.ahead) for b in make_blocks("overlapping", num_layers)]
    assert pairs == [(k, k + 2) for k in range(num_layers - 1)]


@pytest.mark.parametrize("num_layers", [1, 2, 11])
def test_schemes_meet(num_layers: int) -> None:
    assert make_blocks("chunked", num_layers, 1) == _blocks(
        "backpropagation", num_layers
    )
    assert make_blocks("chunked", num_layers, num_layers) == _blocks(
        "greedy", num_layers
    )


@pytest.mark.parametrize(
    ("arguments", "got"),
    [
        (("greedy", 4, 2), "2 with scheme='greedy'"),
        (("chunked", 4), "None with scheme='chunked'"),
        (("chunked", 4, 5), 5),
        (("chunked", 4, [2, 3]), [2, 3]),
        (("chunked", 4, "2"), "2"),
    ],
)
def test_invalid_chunks_are_refused(arguments: tuple, got: Any) -> None:
    with fails(path="chunks", got=got):
        make_blocks(*arguments)


def test_unknown_schemes_are_refused() -> None:
    with fails(path="scheme", got="greedi"):
        make_blocks("greedi", 4)
