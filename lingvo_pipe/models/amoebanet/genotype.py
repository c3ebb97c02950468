r"""AmoebaNet's cells as data.

A cell computes seven states: the outputs of the previous cell and of the cell before
it, then five that each sum two operations on earlier states:

    state i  =  left_op(state a) + right_op(state b)

The output is the states in `concat`, concatenated along channels. All cells follow the
public implementation (tensorflow/tpu, models/official/amoeba_net), which agrees with
the published sizes. Figures in early versions of the paper are wrong.
"""

from typing import NamedTuple


class Edge(NamedTuple):
    """An operation, by name, on a state, by number."""

    op: str
    state: int


class CellGenotype(NamedTuple):
    """A cell: the edges into each of the states 2, 3, ..., and the output's states."""

    pairs: tuple[tuple[Edge, Edge], ...]
    concat: tuple[int, ...]


class Genotype(NamedTuple):
    """A network: a cell that keeps the image's size and a cell that halves it."""

    normal: CellGenotype
    reduction: CellGenotype


def _cell(*pairs: tuple, concat: list[int]) -> CellGenotype:
    edges = tuple((Edge(*left), Edge(*right)) for left, right in pairs)
    return CellGenotype(edges, tuple(concat))


GENOTYPES = {
    "A": Genotype(
        normal=_cell(
            (("avg_pool_3x3", 0), ("max_pool_3x3", 0)),
            (("separable_3x3_2", 1), ("none", 1)),
            (("none", 0), ("avg_pool_3x3", 1)),
            (("separable_3x3_2", 0), ("separable_5x5_2", 2)),
            (("avg_pool_3x3", 5), ("separable_3x3_2", 0)),
            concat=[1, 3, 4, 6],
        ),
        reduction=_cell(
            (("separable_3x3_2", 1), ("avg_pool_3x3", 0)),
            (("max_pool_3x3", 0), ("separable_7x7_2", 2)),
            (("max_pool_3x3", 1), ("max_pool_3x3", 0)),
            (("separable_3x3_2", 4), ("1x7_7x1", 0)),
            (("avg_pool_3x3", 1), ("separable_7x7_2", 0)),
            concat=[2, 3, 4, 5, 6],
        ),
    ),
    "B": Genotype(
        normal=_cell(
            (("1x1", 1), ("max_pool_3x3", 1)),
            (("none", 1), ("separable_3x3_2", 0)),
            (("1x1", 1), ("separable_3x3_2", 0)),
            (("1x1", 2), ("none", 2)),
            (("avg_pool_3x3", 1), ("1x1", 5)),
            concat=[0, 3, 4, 6],
        ),
        reduction=_cell(
            (("max_pool_2x2", 0), ("max_pool_3x3", 0)),
            (("none", 2), ("3x3", 1)),
            (("dil_2_separable_5x5_2", 2), ("max_pool_3x3", 2)),
            (("none", 3), ("separable_3x3_2", 1)),
            (("avg_pool_3x3", 4), ("1x1", 3)),
            concat=[5, 6],
        ),
    ),
    "C": Genotype(
        normal=_cell(
            (("avg_pool_3x3", 0), ("separable_3x3_2", 0)),
            (("none", 0), ("separable_3x3_2", 0)),
            (("avg_pool_3x3", 2), ("separable_3x3_2", 1)),
            (("none", 0), ("separable_3x3_2", 1)),
            (("avg_pool_3x3", 3), ("separable_3x3_2", 0)),
            concat=[1, 2, 4, 5, 6],
        ),
        reduction=_cell(
            (("max_pool_3x3", 0), ("max_pool_3x3", 0)),
            (("separable_7x7_2", 2), ("separable_3x3_2", 0)),
            (("separable_7x7_2", 0), ("max_pool_3x3", 1)),
            (("separable_5x5_2", 4), ("separable_5x5_2", 4)),
            (("max_pool_3x3", 1), ("separable_3x3_2", 1)),
            concat=[0, 2, 3, 4, 5, 6],
        ),
    ),
    "D": Genotype(
        normal=_cell(
            (("1x1", 1), ("max_pool_3x3", 1)),
            (("none", 1), ("1x7_7x1", 0)),
            (("1x1", 0), ("1x7_7x1", 0)),
            (("max_pool_3x3", 2), ("none", 2)),
            (("avg_pool_3x3", 1), ("1x1", 5)),
            concat=[0, 3, 4, 6],
        ),
        reduction=_cell(
            (("max_pool_2x2", 0), ("max_pool_3x3", 0)),
            (("none", 2), ("3x3", 1)),
            (("1x7_7x1", 2), ("max_pool_3x3", 2)),
            (("none", 3), ("max_pool_2x2", 1)),
            (("avg_pool_3x3", 2), ("1x1", 3)),
            concat=[4, 5, 6],
        ),
    ),
}
