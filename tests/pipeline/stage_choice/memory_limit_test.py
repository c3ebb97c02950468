"""Splits that keep within a memory limit, against PeakBytes of every split."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from typing import Any

import pytest
import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.layers.local_loss import LocalLossLayer
from lingvo_pipe.layers.sequential import SequentialLayer
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.devices import stage_devices  # noqa: F401  Asks for several.
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from tests.pipeline.boundaries import all_boundaries
from tests.support.cases import exhaustive

ROWS, M = 2, 4
# Widths of the values between cells: a wide value costs the stage that stashes it.
WIDTHS = [3, 40, 4, 30, 5, 3]
NUM_CELLS = len(WIDTHS) - 1
COSTS = [4, 1, 1, 1, 4]
POLICIES = [
    ("gpipe", "always"),
    ("gpipe", "never"),
    ("1f1b", "except_last"),
    ("1f1b", [1, 3]),
    ("zero_bubble", None),
]


def exponents(outputs: tf.Tensor, targets: NestedMap) -> NestedMap:
    """Returns a loss that stashes as many bytes as its inputs have."""
    return NestedMap(loss=(tf.reduce_mean(tf.exp(outputs)), tf.constant(1.0)))


def cells() -> list[InstantiableParams]:
    return [
        FCLayer.Params().Set(input_dim=a, output_dim=b, activation="TANH")
        for a, b in itertools.pairwise(WIDTHS)
    ]


def pipeline(splits: Any, num_devices: int = 3, **params: Any) -> PipeliningLayer:
    p = PipeliningLayer.Params().Set(
        name="pipe",
        cell_tpl=cells(),
        splits=splits,
        num_micro_batches=M,
        devices=[f"cpu:{i}" for i in range(num_devices)],
    )
    return p.Set(**params).Instantiate()


def limited(
    limit: float | None, splits: Any = "auto", **params: Any
) -> PipeliningLayer:
    costs = COSTS if splits == "auto" else None
    known: dict[str, Any] = {"input_shapes": [(ROWS, WIDTHS[0])], "cell_costs": costs}
    return pipeline(splits, memory_limit=limit, **{**known, **params})


def peak_bytes(layer: PipeliningLayer) -> list[int]:
    return layer.PeakBytes([tf.ones([ROWS * M, WIDTHS[0]])], NestedMap(), exponents)


def rank(boundaries: Iterable[int]) -> Any:
    boundaries = list(boundaries)
    sums = [sum(COSTS[a:b]) for a, b in itertools.pairwise([0, *boundaries])]
    crossing = sum(WIDTHS[end] for end in boundaries[:-1])
    return max(sums), crossing, sum(s * s for s in sums), [-end for end in boundaries]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("schedule", "recompute"),
    POLICIES,
    ids=str,
)
def test_the_best_split_within_the_limit_is_found(
    schedule: str, recompute: Any
) -> None:
    """Against all splits, for each limit that admits another split."""
    policy = {"schedule": schedule, "recompute": recompute}
    peaks = {
        tuple(boundaries): max(peak_bytes(pipeline(boundaries, **policy)))
        for boundaries in all_boundaries(NUM_CELLS, 3)
    }
    chosen = set()
    for limit in sorted(set(peaks.values())):
        fitting = [boundaries for boundaries, peak in peaks.items() if peak <= limit]
        boundaries = limited(limit, **policy).boundaries
        assert boundaries == list(min(fitting, key=rank)), limit
        chosen.add(tuple(boundaries))
    assert len(chosen) > 1, "limits that decide"
    assert (
        boundaries
        == limited(10**9, **policy).boundaries
        == limited(None, **policy).boundaries
    )
    smallest = min(peaks.values())
    named = rf"\bpipe\.memory_limit\D*\b3\D*\b{smallest - 1:,}\b"
    with pytest.raises(ValueError, match=named) as error:
        limited(smallest - 1, **policy)
    assert smallest_limit(str(error.value)) == smallest


def test_a_limit_that_nothing_reaches_leaves_the_given_costs() -> None:
    best = min(all_boundaries(NUM_CELLS, 3), key=rank)
    assert limited(10**9).boundaries == limited(None).boundaries == list(best)


@pytest.mark.parametrize(
    ("schedule", "recompute"),
    [POLICIES[1], exhaustive(*POLICIES[2])],
    ids=str,
)
@pytest.mark.parametrize("splits", [[1, 3, 5], exhaustive(3)])
def test_other_splits_are_checked(splits: Any, schedule: str, recompute: Any) -> None:
    policy = {"schedule": schedule, "recompute": recompute}
    peak = peak_bytes(pipeline(splits, **policy))
    assert len(limited(max(peak), splits, **policy).boundaries) == 3
    device, largest = peak.index(max(peak)), max(peak)
    named = rf"\bpipe\.memory_limit\D*\b{largest - 1:,}\b"
    with pytest.raises(
        ValueError, match=rf"{named}.*device {device}\D*\b{largest:,}\b"
    ):
        limited(largest - 1, splits, **policy)


def test_the_heads_of_blocks_count() -> None:
    """Once they did not run where the limit is checked."""
    parts = [
        FCLayer.Params().Set(input_dim=a, output_dim=b) for a, b in ((3, 400), (400, 3))
    ]
    head = SequentialLayer.Params().Set(sub=parts)
    dense = FCLayer.Params().Set(input_dim=3, output_dim=3)
    blocks = [dense, LocalLossLayer.Params().Set(head=head), dense.Copy()]
    policy: dict[str, Any] = {
        "cell_tpl": blocks,
        "recompute": "never",
        "num_devices": 2,
    }
    peak = max(peak_bytes(pipeline([2, 3], **policy)))
    assert limited(peak, [2, 3], **policy).boundaries == [2, 3]
    with pytest.raises(ValueError, match=rf"\bpipe\.memory_limit\b.*\b{peak:,}\b"):
        limited(peak - 1, [2, 3], **policy)


@pytest.mark.exhaustive
def test_the_prologue_takes_its_part_of_the_first_device() -> None:
    before = [FCLayer.Params().Set(input_dim=7, output_dim=WIDTHS[0])]
    known = {"before_tpl": before, "input_shapes": [(ROWS, 7)]}

    def peak(boundaries: list[int]) -> int:
        layer = pipeline(boundaries, before_tpl=before)
        return max(layer.PeakBytes([tf.ones([ROWS * M, 7])], NestedMap(), exponents))

    peaks = {
        tuple(boundaries): peak(boundaries)
        for boundaries in all_boundaries(NUM_CELLS, 3)
    }
    for limit in sorted(set(peaks.values()))[:2]:
        fitting = [boundaries for boundaries, peak in peaks.items() if peak <= limit]
        assert limited(limit, **known).boundaries == list(min(fitting, key=rank))
    smallest = min(peaks.values())
    named = rf"\bpipe\D*\b3\D*\b{smallest - 1:,}\D*\b{smallest:,}\D*\bsplits="
    with pytest.raises(ValueError, match=named):
        limited(smallest - 1, **known)


@pytest.mark.exhaustive
def test_several_stages_of_a_device_keep_within_together() -> None:
    policy = {"schedule": "interleaved", "stages_per_device": 2, "num_devices": 2}
    with pytest.raises(
        ValueError, match=r"\bpipe\.memory_limit\D*\b4\D*\b1\b"
    ) as error:
        limited(1, **policy)
    smallest = smallest_limit(str(error.value))
    assert sum_of_parts(str(error.value)) * 2 == smallest
    for limit in (smallest, smallest + 1000):
        assert max(peak_bytes(limited(limit, **policy))) <= limit
    assert limited(10**9, **policy).boundaries == limited(None, **policy).boundaries


@pytest.mark.exhaustive
def test_all_stages_of_the_first_device_leave_room_for_the_prologue() -> None:
    """Once only the first stage did, and its device exceeded the limit."""
    before = [FCLayer.Params().Set(input_dim=100, output_dim=WIDTHS[0])]
    policy = {"schedule": "interleaved", "stages_per_device": 2, "num_devices": 2}
    policy.update(before_tpl=before, input_shapes=[(ROWS, 100)])
    with pytest.raises(
        ValueError, match=r"\bpipe\.memory_limit\D*\b4\D*\b1\b"
    ) as error:
        limited(1, **policy)
    smallest = smallest_limit(str(error.value))
    for limit in (smallest, smallest + 1500):
        layer = limited(limit, **policy)
        inputs = [tf.ones([ROWS * M, 100])]
        assert max(layer.PeakBytes(inputs, NestedMap(), exponents)) <= limit


def sum_of_parts(error: str) -> int:
    """Returns the sum of the sizes of the stage that an error names."""
    found = re.search(r"\bweights" + r"\D*(\d[\d,]*)" * 3, error)
    assert found
    return sum(int(part.replace(",", "")) for part in found.groups())


def smallest_limit(error: str) -> int:
    """Returns the smallest sufficient limit that an error names."""
    found = re.search(r"(\d[\d,]*)\D*\bsplits=\[", error)
    assert found
    return int(found[1].replace(",", ""))


@pytest.mark.exhaustive
def test_cells_that_are_too_large_by_themselves_are_named() -> None:
    with pytest.raises(ValueError, match=r"\bpipe\D*\b3\D*\b3,300\b") as error:
        limited(3300)
    text = str(error.value)
    assert re.findall(r"\bcell (\d), FCLayer\b", text) == ["1", "3"]
    weights = 4 * sum(WIDTHS[i] * WIDTHS[i + 1] + WIDTHS[i + 1] for i in (2, 3, 4))
    stage = r"\bsplits=\[1, 2, 5\]\D*\bstage 2\D*\b2\D*\b4\b"
    assert re.search(rf"{stage}\D*\b{weights:,}\D*\b{weights:,}\b", text)


@pytest.mark.parametrize(
    ("schedule", "recompute", "advised"),
    [
        ("gpipe", "never", ["recompute", "schedule"]),
        exhaustive("gpipe", None, ["schedule"]),
        exhaustive("1f1b", "except_last", ["recompute"]),
        exhaustive("1f1b", [0], ["recompute"]),
        ("1f1b", None, []),
        exhaustive("1f1b", "always", []),
        ("zero_bubble", None, ["recompute"]),
    ],
)
def test_what_is_already_set_is_not_advised(
    schedule: str, recompute: Any, advised: list[str]
) -> None:
    for splits in ("auto", 3):
        with pytest.raises(ValueError, match=r"\bpipe\.memory_limit\b") as error:
            limited(1, splits, schedule=schedule, recompute=recompute)
        _check_cells(str(error.value))
        found = re.findall(r"\b(recompute|schedule)='", str(error.value))
        assert found == advised


def _check_cells(text: str) -> None:
    """Checks that an error names the cells of stages by its boundaries."""
    boundaries, *_ = re.findall(r"\bsplits=\[(\d[\d, ]*)\]", text)
    ends = [0, *map(int, boundaries.split(", "))]
    stages = re.findall(r"\bstage (\d), cells (\d)(?: to (\d))?, ", text)
    for stage, first, last in stages:
        assert int(first) == ends[int(stage)]
        assert int(last or first) == ends[int(stage) + 1] - 1
    assert stages


class WordsLayer(BaseLayer):
    """A layer of integer inputs and a map."""

    def FProp(self, theta: NestedMap, words: tf.Tensor, more: NestedMap) -> tf.Tensor:
        return tf.one_hot(words, WIDTHS[0]) + more.shift[:, tf.newaxis]


def test_inputs_have_dtypes_of_their_own() -> None:
    shapes = [(ROWS,), NestedMap(shift=(ROWS,), none=None)]
    known = {"cell_tpl": [WordsLayer.Params(), *cells()], "cell_costs": [1, *COSTS]}
    for dtypes in (["int32", None], [tf.int64, {"shift": "float32"}]):
        layer = limited(1e9, input_shapes=shapes, input_dtypes=dtypes, **known)
        assert len(layer.boundaries) == 3
    with pytest.raises(
        ValueError,
        match=r"(?s)\bpipe\.input_shapes\b.*\binput_dtypes\b.*\bpipe/cells_0\b",
    ):
        limited(1e9, input_shapes=shapes, **known)


def test_a_layer_may_be_created_within_a_graph() -> None:
    """Tracing adds nothing to the graph that is being built."""
    with tf.Graph().as_default() as graph, tf.device("cpu:1"):
        layer = limited(6000)
        names = [op.name for op in graph.get_operations()]
    with tf.Graph().as_default() as other, tf.device("cpu:1"):
        same = pipeline(layer.boundaries)
        assert names == [op.name for op in other.get_operations()]
    assert layer.boundaries == same.boundaries == limited(6000).boundaries
