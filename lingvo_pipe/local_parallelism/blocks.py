r"""Schemes of local parallelism: blocks of layers, each trained by its own loss.

The schemes for four layers (`|`: no gradient goes back, `L`: a loss is computed):

    backpropagation  1 - 2 - 3 - 4 L
    chunked, 2       1 - 2 L | 3 - 4 L
    greedy           1 L | 2 L | 3 L | 4 L
    overlapping      1 - 2'L | 2 - 3'L | 3 - 4 L

Laskin et al. 2020 (arXiv 2012.03837), figure 2. In the overlapping scheme a layer is in
two blocks: 2' is a second pass through layer 2, with the same weights. The losses of
both blocks train these weights.
"""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.layers.core.checks import check_choice
from lingvo_pipe.pipeline.splitting.partitioning import resolve_boundaries

SCHEMES = ("backpropagation", "chunked", "greedy", "overlapping")


class Block(NamedTuple):
    """Consecutive layers, counted from 0, that one loss trains."""

    begin: int
    end: int  # one past the last layer, whose outputs the next block receives
    ahead: int = 0  # number of further layers to run before the loss


def make_blocks(
    scheme: str, num_layers: int, chunks: int | Sequence[int] | None = None
) -> list[Block]:
    """Returns the blocks into which a scheme divides the layers of a model.

    The last block has the model's own loss. `chunks` is for the scheme 'chunked' only.
    It is a number of blocks of nearly equal size, or a list that has, for each block,
    the number of the model's layers up to the block's end.

    Raises:
        ValueError: if the model cannot be divided like this.
    """
    check_choice(scheme, SCHEMES, "scheme")
    if (chunks is None) == (scheme == "chunked"):
        raise UserValueError(
            path="chunks",
            expected="a number of blocks with scheme='chunked', else None",
            got=Words(f"{chunks!r} with scheme={scheme!r}"),
        )
    if scheme == "overlapping":
        firsts = [Block(k, k + 1, ahead=1) for k in range(num_layers - 2)]
        return [*firsts, Block(max(num_layers - 2, 0), num_layers)]
    splits = {"backpropagation": 1, "greedy": num_layers}.get(scheme, chunks)
    assert splits is not None
    try:
        boundaries = resolve_boundaries(splits, num_layers)
    except ValueError as error:
        raise UserValueError(
            path="chunks",
            expected=f"1 to {num_layers} blocks, or the number of cells up to the end "
            f"of each, ascending to {num_layers}",
            got=chunks,
        ) from error
    return list(itertools.starmap(Block, itertools.pairwise([0, *boundaries])))
