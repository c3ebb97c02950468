"""Invalid values of params are refused; the stages that valid values mean."""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams, Params
from lingvo_pipe.layers.convolution import Conv2DLayer
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from lingvo_pipe.pipeline.pipelining_params import (
    define_pipelining_params,
    make_layout,
)
from lingvo_pipe.pipeline.schedules.by_rule import gpipe

DIM = 3
NUM_CELLS = 4
DEVICES = ["cpu:0", "cpu:1"]
FIVE = [f"cpu:{i}" for i in range(5)]


class UnpricedLayer(BaseLayer):
    """A layer without FPropMeta."""


def _dense(num_in: int = DIM, num_out: int = DIM) -> InstantiableParams:
    return FCLayer.Params().Set(input_dim=num_in, output_dim=num_out)


def _params(**values: Any) -> InstantiableParams:
    p = PipeliningLayer.Params().Set(
        name="pipe", cell_tpl=[_dense() for _ in range(NUM_CELLS)]
    )
    return p.Set(**values)


@dataclass(frozen=True)
class Wrong:
    """An invalid value of a param, with valid values of others.

    Attributes:
        value: the value.
        pattern: pattern of the error, or None for the value itself.
        others: params that are set too.
    """

    value: Any
    pattern: str | None = None
    others: dict[str, Any] = field(default_factory=dict)


def _auto(value: Any, pattern: str | None = None, **others: Any) -> Wrong:
    return Wrong(value, pattern, {"splits": "auto", "devices": DEVICES, **others})


def _each(*values: Any) -> list[Wrong]:
    return [Wrong(value) for value in values]


def _each_auto(*values: Any) -> list[Wrong]:
    return [_auto(value) for value in values]


NAN, INF = float("nan"), float("inf")
NO_COUNTS = _each(0, -1, True, 1.0, 1.5, "2", [1], {})
LEFT = r"\bpipe\b.*'auto'.*\btrainer\b"
LEFT_TOO = {"schedule": "auto", "recompute": "auto"}
NO_LAYERS = [
    Wrong(3),
    Wrong(None),
    Wrong("FCLayer"),
    Wrong(_dense(), r"FCLayer\.Params\(\)"),
    Wrong([_dense(), 3], r"\[FCLayer\.Params\(\), 3\]"),
    Wrong([FCLayer]),
    Wrong([Params()]),
    Wrong([InstantiableParams(NestedMap)], r"NestedMap\.Params\(\)"),
    Wrong({"a": _dense()}, "{'a'"),
]

# Every param; a new one must be added.
WRONG: dict[str, list[Wrong]] = {
    "cell_tpl": [*NO_LAYERS, Wrong([])],
    "before_tpl": NO_LAYERS,
    "tied": [
        *_each(None, 3, "a: b", [("a", "b")]),
        Wrong({"cells_1/w": 3}),
        Wrong({3: "cells_0/w"}),
        Wrong(
            {"cells_1/v": "cells_0/w"}, r"\['cells_1/v'\].*\bpipe\b.*\].*'cells_1/w'"
        ),
        Wrong(
            {"cells_1/w": "cells_0/v"}, r"\bcells_1/w\b.*\bcells_0/v\b.*\].*'cells_0/w'"
        ),
        Wrong({"cells_1/w": "cells_1/w"}, r"\bcells_1/w\b.*\bcells_1/w\b.*\['cells_"),
    ],
    "slices": [
        *_each(3, [], "atuo", {"cells[0]": 0}, {"cells[0]": "2"}, {0: 2}),
        Wrong({"cells[0]": 99}, r"\b99\b"),
        Wrong("auto", r"\bmemory_limit\b"),
    ],
    "splits": [
        *_each(None, 0, 1.5, True, "2", "atuo", [], {}),
        Wrong(NUM_CELLS + 1, r"\b4\D*\b5\b"),
        Wrong([2, 2, 4], r"\[2, 2, 4\].*\bstage 1\b"),
        Wrong([2], r"\b4\D*\[2\]\D*\b2\b"),
        Wrong([2, "4"], r"\[2, '4'\].* '4'"),
        Wrong(
            "auto",
            r"\bpipe\.devices\b.*splits='auto'",
            {"cell_costs": [1] * NUM_CELLS},
        ),
        Wrong("auto", r"\binput_shapes\b.*splits='auto'", {"devices": DEVICES}),
        _auto("auto", r"\b4\D*\b5\b", cell_costs=[1] * 4, devices=FIVE),
        _auto(
            "auto",
            r"\b4\D*\b5\b",
            input_shapes=[(2, DIM)],
            memory_limit=1,
            devices=FIVE,
        ),
    ],
    "cell_costs": [
        _auto("measurd", "'measurd'.*'measured'"),
        _auto("measured", r"\bpipe\.input_shapes\b.*\bcell_costs\b"),
        Wrong("measured", r"'measured'.*\bsplits=1\b", {"input_shapes": [(2, DIM)]}),
        *_each_auto(3, "1234", {}, [1, 2], [1, 2, 3, -4]),
        *(_auto([1, 2, 3, cost]) for cost in (NAN, INF, "4", None, True)),
        Wrong([1, 2, 3, 4], r"\[1, 2, 3, 4\].*\bsplits=1\b"),
        Wrong([1, 2, 3, 4], r"\[1, 2, 3, 4\].*\bsplits=\[2, 4\]", {"splits": [2, 4]}),
    ],
    "input_shapes": [
        *_each_auto(3, "23", {}, np.ones(2)),
        _auto((2, DIM), r"\bpipe\b.* 2\b"),
        *(_auto([(2, size)], f"2, {size}") for size in (None, 0, -1, 1.5)),
        _auto([], r"\bcell_tpl\[0\].*\bFCLayer\b"),
        _auto([(2, DIM), (2, DIM)], r"\bFCLayer\b.*\(2, 3\), \(2, 3\)"),
        _auto(
            [(2, DIM)], "UnpricedLayer.FPropMeta", before_tpl=[UnpricedLayer.Params()]
        ),
        Wrong([(2, DIM)], r"\[\(2, 3\)\].*\bsplits=1\b"),
        _auto([], r"\bpipe\b.*\binput_shapes\b", cell_costs="measured"),
        _auto([(2, DIM + 1)], r"pipe/cells_0.*\(2, 4\)", cell_costs="measured"),
    ],
    "input_dtypes": [
        *_each_auto(3, "int32", {}, [3], ["int33"], [["int32"]], [True]),
        _auto(["int32"], r"\binput_shapes\b.*\['int32'\].*\bNone\b"),
        _auto(
            ["int32"] * 2,
            r"\binput_shapes\b.*\['int32', 'int32'\].*\[\(2, 3\)\]",
            input_shapes=[(2, DIM)],
        ),
        *(
            _auto([dtypes], pattern, input_shapes=[{"x": (2, DIM)}], memory_limit=1e9)
            for dtypes, pattern in (
                ("int32", r"\['x'\].*'int32'"),
                ({"y": "int32"}, r"\['x'\].*\{'y': 'int32'\}"),
            )
        ),
    ],
    "memory_limit": [
        *_each(0, -1, True, NAN, INF, "1", [1]),
        Wrong(1, r"\bpipe\.input_shapes\b.*\bmemory_limit\b"),
        _auto(
            1, r"\bpipe\.input_shapes\b.*\bmemory_limit\b", cell_costs=[1] * NUM_CELLS
        ),
        _auto(1, r"\bpipe\D*\b2\D*\b1\b.*\bsplits=\[2, 4\]", input_shapes=[(2, DIM)]),
        Wrong(1, r"\bpipe\D*\b1\D*\bsplits=\[4\]", {"input_shapes": [(2, DIM)]}),
    ],
    "num_micro_batches": [
        *NO_COUNTS,
        Wrong(None),
        Wrong("auto", LEFT),
        _auto("auto", r"\bschedule\b.*\brecompute\b.*'auto'.*\btrainer\b", **LEFT_TOO),
    ],
    "micro_batch_size": NO_COUNTS,
    "batch_dim": _each(-1, None, False, 0.0, 1.5, "0", []),
    "state_dtype": [
        *_each(1, 14, True, 1.5, [], "nonsense", "int32"),
        Wrong(tf.int32),
        Wrong(np.float32(1)),
    ],
    "schedule": [
        *_each(None, 3, True, [], gpipe(1, 1)),
        Wrong("gpip", "'gpip'.*'gpipe'"),
        Wrong("nowhere.csv", f"'nowhere.csv'.*{os.strerror(errno.ENOENT)}"),
        Wrong("", "''"),
        Wrong("auto", LEFT),
    ],
    "num_replicas": [
        *_each(0, -1, 1.5, "2", None, True, [1]),
        Wrong(3, r"\bnum_micro_batches\b.*\bnum_replicas\W*3\D*1\b"),
    ],
    "num_batch_shards": [
        *_each(0, -1, 1.5, "2", True, [1]),
        Wrong(
            3, r"\bnum_batch_shards\b.*\bnum_replicas\W*2\D*3\b", {"num_replicas": 2}
        ),
        Wrong(7, r"\bnum_micro_batches\b.*\bnum_batch_shards\W*7\D*1\b"),
    ],
    "stages_per_device": [
        *NO_COUNTS,
        Wrong(None),
        Wrong(3, r"\bpipe\D*\b1\D*\b3\b"),
        *(
            Wrong(
                2,
                rf"stages_per_device\b.*'{name}'\D*\b2\b.*'interleaved'",
                {"splits": 4, "schedule": name},
            )
            for name in ("gpipe", "1f1b", "zero_bubble")
        ),
    ],
    "recompute": [
        *_each(True, 3, 1.5, "", {}, {1}, [0, 0], [-1], [True]),
        *(Wrong([i]) for i in (NUM_CELLS, 1.0, "0", None)),
        Wrong("allways", "'allways'.*'always'"),
        Wrong("auto", LEFT),
    ],
    "jit_compile": _each(None, 0, 1, "True", []),
    "devices": [
        *_each(2, True, "cpu:0", [], {}, [0], [None]),
        Wrong(["cpu:0", "cpu:0"], r"\['cpu:0'\]", {"splits": 2}),
        Wrong(["cpus:0"], r"\['cpus:0'\].* 'cpu:0'\?"),
        Wrong(["cpu:99"], r"\['cpu:0', .*\['cpu:99'\]"),
        Wrong(DEVICES, r"\b1\D*\['cpu:0', 'cpu:1'\]"),
    ],
}


def _defined() -> set[str]:
    p = Params()
    define_pipelining_params(p)
    return set(dict(p.IterParams()))


def test_no_param_is_left_out() -> None:
    assert set(WRONG) == _defined()


@pytest.mark.parametrize(
    ("name", "wrong"), [(name, wrong) for name in WRONG for wrong in WRONG[name]]
)
def test_a_wrong_value_is_refused(name: str, wrong: Wrong) -> None:
    p = _params(**{**wrong.others, name: wrong.value})
    pattern = re.escape(repr(wrong.value)) if wrong.pattern is None else wrong.pattern
    with pytest.raises(ValueError, match=pattern) as caught:
        p.Instantiate()
    message = str(caught.value)
    assert name in message.lower()
    assert re.search(r"\bpipe\b", message)
    assert len(message) < 800


def test_long_values_are_cut() -> None:
    with pytest.raises(ValueError, match=r"\bpipe\b.*\[0, 1, .*\.\.\."):
        _params(cell_tpl=list(range(1000))).Instantiate()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cell_tpl", (_dense(),)),
        ("splits", np.int64(2)),
        ("splits", (1, NUM_CELLS)),
        ("num_micro_batches", np.int32(2)),
        ("micro_batch_size", 2),
        ("batch_dim", np.int64(0)),
        ("state_dtype", "bfloat16"),
        ("state_dtype", np.float16),
        ("recompute", (3, 0)),
        ("recompute", []),
        ("devices", ("cpu:2",)),
        ("devices", ["/device:CPU:2"]),
    ],
)
def test_a_value_may_be_of_another_type(name: str, value: Any) -> None:
    make_layout(_params(**{name: value}), "pipe")


def _automatic(**values: Any) -> list[int]:
    return make_layout(
        _params(splits="auto", devices=DEVICES, **values), "pipe"
    ).boundaries


def test_the_prologue_does_not_move_the_cells() -> None:
    """It runs alone, so with fewer cells the first stage would only wait longer."""
    for num_before in range(NUM_CELLS):
        before = [_dense() for _ in range(num_before)]
        assert _automatic(input_shapes=[(2, DIM)], before_tpl=before) == [2, 4]


def test_layers_without_costs_are_named() -> None:
    """The prologue and the cells are counted separately."""
    before, conv = [_dense()], Conv2DLayer.Params().Set(filter_shape=[3, 3, 1, 1])
    with pytest.raises(
        ValueError, match=r"\bpipe\.input_shapes\b.*cell_tpl\[0\], Conv2DLayer"
    ):
        _automatic(input_shapes=[(2, DIM)], before_tpl=before, cell_tpl=[conv] * 2)
    with pytest.raises(ValueError, match=r"\bbefore_tpl\[1\], Conv2DLayer\b"):
        _automatic(input_shapes=[(2, DIM)], before_tpl=[*before, conv])
