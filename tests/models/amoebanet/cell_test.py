"""Cells against sums written out by hand, and their genotypes."""

from __future__ import annotations

import functools
import zlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.batch_norm import BatchNormLayer
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.layers.dropout import DropPathLayer
from lingvo_pipe.models.amoebanet.cell import AmoebaCell
from lingvo_pipe.models.amoebanet.genotype import GENOTYPES, CellGenotype
from lingvo_pipe.models.amoebanet.operations import FactorizedReductionLayer
from tests.support.cases import exhaustive, pairwise_params
from tests.support.errors import fails

# One is a test's own.
PUBLISHED = {name: cells for name, cells in GENOTYPES.items() if name != "small"}
CELLS = [(g, kind) for g in PUBLISHED for kind in ("normal", "reduction")]
every_cell = pytest.mark.parametrize(("genotype", "kind"), CELLS)


def _genotype(genotype: str, kind: str) -> CellGenotype:
    return getattr(GENOTYPES[genotype], kind)


@every_cell
def test_genotypes_are_complete(genotype: str, kind: str) -> None:
    cell = _genotype(genotype, kind)
    assert len(cell.pairs) == 5
    for i, pair in enumerate(cell.pairs):
        assert all(edge.state < i + 2 for edge in pair), "states come before their use"
    used = {edge.state for pair in cell.pairs for edge in pair}
    assert used | set(cell.concat) >= set(range(2, 7)), "no state is lost"
    assert list(cell.concat) == sorted(set(cell.concat))


def test_outputs_are_as_wide_as_published() -> None:
    """The numbers of concatenated states are 4, 5; 4, 2; 5, 6; 4, 3."""
    widths = [len(_genotype(genotype, kind).concat) for genotype, kind in CELLS]
    assert widths == [4, 5, 4, 2, 5, 6, 4, 3]


def test_genotypes_never_change() -> None:
    """They come from the public code; sizes would not distinguish pools."""
    assert zlib.crc32(repr(PUBLISHED).encode()) == 0x2DB432FB


def _run(cell: Any, *inputs: Any, **context: Any) -> Any:
    with ForwardContext(**{"do_eval": True, **context}):
        return cell.FProp(cell.theta, *inputs)


def _image(size: int, channels: int, seed: int) -> tf.Tensor:
    return tf.random.stateless_normal([2, size, size, channels], [seed, 2])


def _cell(genotype: str, kind: str, **params: Any) -> Any:
    p = AmoebaCell.Params().Set(
        name="cell",
        genotype=genotype,
        reduction=kind == "reduction",
        num_filters=8,
        num_in=6,
    )
    return p.Set(**params).Instantiate()


@pytest.mark.parametrize(
    *pairwise_params(
        {
            "genotype": list(PUBLISHED),
            "kind": ["normal", "reduction"],
            "before": [None, "alike", "wider", "larger"],
        }
    )
)
def test_a_cell_is_the_sum_its_genotype_says(
    genotype: str, kind: str, before: str | None
) -> None:
    """Returns the sums, from the cell's operations."""
    channels = {None: None, "alike": 8, "wider": 10, "larger": 10}[before]
    cell = _cell(
        genotype, kind, num_in_before=channels, before_is_larger=before == "larger"
    )
    last = _image(5, 6, 1)
    earlier = None
    if channels is not None:
        earlier = _image(10 if before == "larger" else 5, channels, 3)
    output, passed_on, _, label = _run(cell, last, earlier, None, "label")

    op = functools.partial(_run_child, cell)
    states = [op("project", last), last if earlier is None else earlier]
    assert ("fit" in cell.children) == (before in ("wider", "larger"))
    if "fit" in cell.children:
        states[1] = op("fit", states[1])
    for i, ((_, a), (_, b)) in enumerate(_genotype(genotype, kind).pairs, 2):
        states.append(op(f"left_{i}", states[a]) + op(f"right_{i}", states[b]))
    matched = [
        op(f"match_{i}", states[i]) if f"match_{i}" in cell.children else states[i]
        for i in _genotype(genotype, kind).concat
    ]
    assert all(state.shape == states[6].shape for state in matched)
    np.testing.assert_array_equal(output, tf.concat(matched, -1))
    assert passed_on is last
    assert label == "label"
    size = 3 if kind == "reduction" else 5
    assert output.shape[1:] == [size, size, 8 * len(_genotype(genotype, kind).concat)]


def _run_child(cell: Any, name: str, x: tf.Tensor) -> tf.Tensor:
    with ForwardContext(do_eval=True):
        return cell.children[name].FProp(cell.theta[name], x)


def test_the_normal_cell_of_d_is_the_drawing() -> None:
    """Returns the outputs written out, and each operation's kind."""
    cell = _cell("D", "normal", num_filters=4, num_in_before=4)
    last, s1 = _image(5, 6, 1), _image(5, 4, 3)

    op = functools.partial(_run_child, cell)
    s0 = op("project", last)
    s2 = op("left_2", s1) + tf.nn.max_pool2d(s1, 3, 1, "SAME")
    s3 = s1 + op("right_3", s0)
    s4 = op("left_4", s0) + op("right_4", s0)
    s5 = tf.nn.max_pool2d(s2, 3, 1, "SAME") + s2
    s6 = tf.nn.avg_pool2d(s1, 3, 1, "SAME") + op("right_6", s5)
    output, *_ = _run(cell, last, s1, None)
    np.testing.assert_array_equal(output, tf.concat([s0, s3, s4, s6], -1))


@pytest.mark.parametrize(
    ("genotype", "kind", "params", "states"),
    [
        ("C", "reduction", {"num_in_before": 8}, [0]),
        ("C", "reduction", {}, [0]),
        ("C", "normal", {}, [1]),
        ("C", "normal", {"num_in_before": 5}, []),
        ("A", "normal", {}, [1]),
        ("A", "normal", {"num_in": 8}, []),
        ("A", "reduction", {}, []),
        ("B", "normal", {}, []),
        ("D", "reduction", {}, []),
    ],
)
def test_what_is_concatenated_is_made_alike(
    genotype: str, kind: str, params: dict[str, int], states: list[int]
) -> None:
    """State 0 in C's reduction cell, and the unprojected input of a first cell."""
    cell = _cell(genotype, kind, **params)
    assert [i for i in range(7) if f"match_{i}" in cell.children] == states


@every_cell
def test_only_what_comes_in_is_halved(genotype: str, kind: str) -> None:
    """An operation on a state within the cell has no stride."""
    cell = _cell(genotype, kind, num_in_before=8)
    for i, pair in enumerate(_genotype(genotype, kind).pairs, 2):
        for side, edge in zip(("left", "right"), pair, strict=True):
            halves = kind == "reduction" and edge.state < 2
            output = _run_child(cell, f"{side}_{i}", _image(6, 8, i))
            assert output.shape[1:] == ([3, 3, 8] if halves else [6, 6, 8])


def _dropping(genotype: str, kind: str, num_cells: int = 4) -> Any:
    drop_path = DropPathLayer.Params().Set(keep_prob=0.5)
    return _cell(
        genotype, kind, num_in_before=10, drop_path_tpl=drop_path, num_cells=num_cells
    )


def _drop_path_layers(cell: Any) -> list[str]:
    return [d.path for d in cell.Descendants() if isinstance(d, DropPathLayer)]


@every_cell
def test_every_operation_but_none_has_a_drop_path_of_its_own(
    genotype: str, kind: str
) -> None:
    pairs = _genotype(genotype, kind).pairs
    assert _drop_path_layers(_dropping(genotype, kind)) == [
        f"cell/drop_{side}_{i}"
        for i, pair in enumerate(pairs, 2)
        for side, edge in zip(("left", "right"), pair, strict=True)
        if edge.op != "none"
    ]
    assert not _drop_path_layers(_cell(genotype, kind, num_in_before=10))


@pytest.mark.parametrize(
    ("genotype", "kind"),
    # The fast suite has each genotype once, and each kind twice.
    [case if i in (0, 3, 4, 7) else exhaustive(*case) for i, case in enumerate(CELLS)],
)
def test_each_operation_is_dropped_as_its_drop_path_drops(
    genotype: str, kind: str
) -> None:
    """Returns the sums from the cell's layers, at the depth of its number."""
    cell, last, before = _dropping(genotype, kind), _image(4, 6, 1), _image(4, 10, 3)
    training: dict[str, Any] = {"do_eval": False, "step": 5, "first_example": 0}
    num_before = tf.constant([2, 2], tf.int64)
    output, _, num, label = _run(cell, last, before, num_before, "label", **training)
    np.testing.assert_array_equal(num, [3, 3])
    assert label == "label"
    with ForwardContext(**training):

        def run(name: str, x: tf.Tensor, *more: tf.Tensor) -> tf.Tensor:
            return cell.children[name].FProp(cell.theta[name], x, *more)

        def operate(name: str, edge: Any) -> tf.Tensor:
            y = run(name, states[edge.state])
            if edge.op == "none":
                return y
            return run(f"drop_{name}", y, tf.constant(3 / 4, tf.float64))

        states = [run("project", last), run("fit", before)]
        for i, (left, right) in enumerate(_genotype(genotype, kind).pairs, 2):
            states.append(operate(f"left_{i}", left) + operate(f"right_{i}", right))
        matched = [
            run(f"match_{i}", states[i]) if f"match_{i}" in cell.children else states[i]
            for i in _genotype(genotype, kind).concat
        ]
    np.testing.assert_array_equal(output, tf.concat(matched, -1))


def test_evaluation_drops_nothing_and_needs_no_number() -> None:
    """Without drop-path a cell passes on no number."""
    cells = _dropping("D", "normal"), _cell("D", "normal", num_in_before=10)
    one, other = (_run(c, _image(4, 6, 1), _image(4, 10, 3), None) for c in cells)
    np.testing.assert_array_equal(one[0], other[0])
    assert one[2] is other[2] is None


def test_dropping_needs_numbers_of_cells() -> None:
    with fails(path="cell.num_cells", got=None):
        _cell("D", "normal", drop_path_tpl=DropPathLayer.Params())
    inputs = _image(4, 6, 1), _image(4, 10, 3), None
    training: dict[str, Any] = {"do_eval": False, "step": 0, "first_example": 0}
    with fails(path="cell", got=None):
        _run(_dropping("D", "normal"), *inputs, **training)


def _reduction(num_filters: int, activation: str = "RELU") -> Any:
    p: InstantiableParams = FactorizedReductionLayer.Params().Set(
        name="half",
        num_in=3,
        num_filters=num_filters,
        activation=activation,
        norm_tpl=BatchNormLayer.Params().Set(epsilon=1e-3),
    )
    return p.Instantiate()


@pytest.mark.parametrize("size", [6, 7])
@pytest.mark.parametrize("activation", ["RELU", "NONE"])
@pytest.mark.parametrize(("num_filters", "halves"), [(6, (3, 3)), (47, (23, 24))])
def test_a_factorized_reduction_sees_every_other_pixel_twice(
    num_filters: int, halves: tuple[int, int], activation: str, size: int
) -> None:
    """It sees even pixels, and their lower right neighbors; 0 beyond the image."""
    layer = _reduction(num_filters, activation)
    x = _image(size, 3, 1).numpy()
    got = _run(layer, tf.constant(x))
    if activation == "RELU":
        x = np.maximum(x, 0.0)
    size_out = -(-size // 2)
    padded = np.pad(x, [(0, 0), (0, 2), (0, 2), (0, 0)])
    parts = []
    for start, name, width in zip((0, 1), ("even", "odd"), halves, strict=True):
        pixels = padded[:, start::2, start::2][:, :size_out, :size_out]
        kernel = layer.theta[name].w[0, 0]
        assert kernel.shape == [3, width]
        parts.append(pixels @ kernel.numpy())
    want = np.concatenate(parts, -1) / np.sqrt(1.0 + 1e-3)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_a_factorized_reduction_needs_two_filters() -> None:
    with fails(path="half.num_filters", got=1):
        _reduction(1)
