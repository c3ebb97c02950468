r"""Schemes: the blocks of layers that are trained each by a loss of its own. Pure.

For four layers, `|` where no gradient goes back, `L` where a loss is computed:

    backpropagation  1 - 2 - 3 - 4 L
    chunked, 2       1 - 2 L | 3 - 4 L
    greedy           1 L | 2 L | 3 L | 4 L
    overlapping      1 - 2'L | 2 - 3'L | 3 - 4 L

Laskin et al. 2020 (arXiv 2012.03837), figure 2. In the overlapping scheme a layer is in
two blocks: 2' has the weights of 2, which are trained by both losses. It computes again
what 2 computes, and so the weights' two gradients come of passes of their own.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from lingvo_pipe.hyperparams.suggest import did_you_mean
from lingvo_pipe.pipeline.splitting.partition import resolve_ends

SCHEMES = ("backpropagation", "chunked", "greedy", "overlapping")


class Block(NamedTuple):
    """Consecutive layers, counted from 0, that one loss trains.

    Attributes:
        begin: the first.
        end: the one after the last that hands its outputs to the next block.
        ahead: how many of those behind are run ahead, before the loss.
    """

    begin: int
    end: int
    ahead: int = 0


def make_blocks(
    scheme: str, num_layers: int, chunks: int | Sequence[int] | None = None
) -> list[Block]:
    """The blocks of a model; the last one's loss is the model's own.

    Args:
        scheme: one of SCHEMES.
        num_layers: of the model.
        chunks: for 'chunked' alone: C, of as even a number of layers as can be; or the
            blocks' ends, the number of layers up to and including each.

    Raises:
        ValueError: if there are no such blocks.
    """
    if scheme not in SCHEMES:
        raise ValueError(
            f"A scheme must be one of {', '.join(map(repr, SCHEMES))}; got {scheme!r}."
            + (did_you_mean(str(scheme), SCHEMES) or " Choose one of these.")
        )
    if (chunks is None) == (scheme == "chunked"):
        raise ValueError(
            "chunks, the number of blocks, is for 'chunked', which needs it, and for "
            f"no other scheme; got {chunks!r} for {scheme!r}. "
            + ("Set" if chunks is None else "Leave out")
            + " task.local.chunks."
        )
    if scheme == "overlapping":
        firsts = [Block(k, k + 1, ahead=1) for k in range(num_layers - 2)]
        return [*firsts, Block(max(num_layers - 2, 0), num_layers)]
    if isinstance(chunks, str):
        raise ValueError(
            "chunks must be a number of blocks, or a list of their ends; got "
            f"{chunks!r}. Write numbers without quotes."
        )
    wanted = {"backpropagation": 1, "greedy": num_layers}.get(scheme, chunks)
    assert wanted is not None
    try:
        ends = resolve_ends(wanted, num_layers)
    except ValueError as error:
        message = str(error).replace("splits", "chunks").replace("stage", "block")
        message = message.replace("layers", "cells").replace(" or devices", "")
        raise ValueError(message) from error
    return list(itertools.starmap(Block, itertools.pairwise([0, *ends])))
