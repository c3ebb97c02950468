"""Texts of errors about layers, pipelines, schedules and plans."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.layers.dropout import DropoutLayer
from lingvo_pipe.pipeline.memory.call_bytes import CallBytes
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from lingvo_pipe.pipeline.splitting.cell_costs import CellSeconds
from lingvo_pipe.planner.costs.model_costs import ModelCosts
from lingvo_pipe.planner.measured.resolve_auto import extract_auto
from lingvo_pipe.planner.resources.device_model import DEVICES
from lingvo_pipe.planner.resources.resources import Constraints, Resources
from lingvo_pipe.planner.search.fitting_plan import NothingFits, plan
from tests.wordings.wording import Wording

GB = 10**9


class UsersLayer(BaseLayer):
    """A layer whose parts are made by a function."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.Define("make_parts", None, "Is given the layer.")
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        self.params.make_parts(self)


def _users(make_parts: Callable[[Any], object]) -> None:
    UsersLayer.Params().Set(name="block", make_parts=make_parts).Instantiate()


def _dense(**values: Any) -> InstantiableParams:
    return FCLayer.Params().Set(input_dim=3, output_dim=3).Set(**values)


def _pipeline(**values: Any) -> None:
    """Makes a pipeline of four layers."""
    cells = [_dense() for _ in range(4)]
    PipeliningLayer.Params().Set(name="pipe", cell_tpl=cells, **values).Instantiate()


def _pipeline_by_file(folder: Path, text: str, **values: Any) -> None:
    path = folder / "mine.csv"
    path.write_text(text)
    _pipeline(schedule=str(path), **values)


def _large_model(num_rows: int) -> tuple[ModelCosts, list[CellSeconds]]:
    """Returns the costs of two cells with 40 GB for each one's weights."""
    weights = CallBytes(10 * GB, 10 * GB, num_rows * GB, 0, True, [0], [1])
    costs = ModelCosts(
        num_rows=num_rows,
        flops=[GB, GB],
        num_parameters=[GB, GB],
        slot_bytes=[20 * GB, 20 * GB],
        calls=[
            weights,
            weights._replace(used=[1], made=[2]),
            CallBytes(0, 0, 0, 0, True, [2], []),
        ],
        value_bytes={1: num_rows, 2: num_rows},
    )
    return costs, [CellSeconds(1.0, 2.0)] * 2


WORDINGS = [
    # ---- Layers.
    Wording(
        "no name",
        lambda _: _dense().Instantiate(),
        ValueError,
        "FCLayer",
        "The name of a FCLayer: expected letters, digits, '_', '-' and '.', with a "
        "letter or digit first, got ''. Set it: params.Set(name='...').",
    ),
    Wording(
        "two children of one name",
        lambda _: _users(
            lambda layer: [layer.CreateChild("inner", _dense()) for _ in range(2)]
        ),
        ValueError,
        "'inner'",
        "block: expected a part's name that no other part or method has; 'inner' is "
        "taken. Choose another name.",
    ),
    Wording(
        "a layer in place of its params",
        lambda _: _users(
            lambda layer: layer.CreateChild("inner", _dense(name="fc").Instantiate())
        ),
        ValueError,
        "block/inner",
        "block/inner: expected a layer's Params, got a FCLayer. Pass "
        "TheLayer.Params().",
    ),
    Wording(
        "a shape in place of WeightParams",
        lambda _: _users(lambda layer: layer.CreateVariable("w", [8, 8])),
        ValueError,
        "[8, 8]",
        "block/w: expected WeightParams, got a list, [8, 8]. Write "
        "WeightParams(shape=[...]).",
    ),
    Wording(
        "a dimension left out",
        lambda _: FCLayer.Params().Set(name="fc", output_dim=4).Instantiate(),
        ValueError,
        "[0, 4]",
        "The shape of fc/w: expected dimensions that are integers of at least 1, and "
        "at most 17,179,869,184 numbers, got [0, 4]. Check the layer's params.",
    ),
    Wording(
        "inputs of other channels",
        lambda _: _dense(name="fc").Instantiate()(tf.zeros([2, 5])),
        ValueError,
        "(2, 5)",
        "fc: expected inputs of 3 channels, their last dimension, got inputs of shape "
        "(2, 5). Check the params of the layer and of the previous layer.",
    ),
    Wording(
        "a probability above 1",
        lambda _: DropoutLayer.Params().Set(name="drop", keep_prob=1.5).Instantiate(),
        ValueError,
        "keep_prob",
        "drop.keep_prob: expected a number in (0, 1], got 1.5.",
    ),
    # ---- Params of pipelines.
    Wording(
        "no micro-batches",
        lambda _: _pipeline(num_micro_batches=0),
        ValueError,
        "num_micro_batches",
        "pipe.num_micro_batches: expected an integer of at least 1, got 0. Set it to 1 "
        "to leave the mini-batch whole.",
    ),
    Wording(
        "replicas that do not divide the micro-batches",
        lambda _: _pipeline(num_micro_batches=3, num_replicas=2),
        ValueError,
        "num_replicas",
        "pipe.num_micro_batches: expected a multiple of num_replicas, 2, got 3. Change "
        "one of them.",
    ),
    Wording(
        "more stages than layers",
        lambda _: _pipeline(splits=5),
        ValueError,
        "pipe.splits",
        "pipe.splits: expected 1 to 4 stages (one per layer), got 5. Use fewer stages "
        "or devices.",
    ),
    Wording(
        "a stage without layers",
        lambda _: _pipeline(splits=[2, 2, 4]),
        ValueError,
        "[2, 2, 4]",
        "pipe.splits: expected stage boundaries, integers that ascend strictly up to "
        "the number of layers, 4; got [2, 2, 4], where stage 1 is empty, from 2 to 2. "
        "For each stage give the number of layers, each slice counted, up to and "
        "including it.",
    ),
    Wording(
        "unknown schedule",
        lambda _: _pipeline(schedule="gpip"),
        ValueError,
        "'gpip'",
        "pipe.schedule: Unknown schedule 'gpip'. Expected 'gpipe', '1f1b', "
        "'zero_bubble', 'local', 'interleaved', 'interleaved_zero_bubble', "
        "'zero_bubble_v', 'dualpipe_v' or a path ending in '.csv'. Did you mean "
        "'gpipe'?",
    ),
    Wording(
        "unknown recomputation",
        lambda _: _pipeline(recompute="allways"),
        ValueError,
        "'allways'",
        "pipe.recompute: expected None, one of 'always', 'except_last', 'never', or a "
        "list of indices of cells, got 'allways'. Did you mean 'always'? List each "
        "cell once, counted from 0 (in an override: 'recompute (list) : [0, 2]'); or "
        "leave it None for the schedule's own.",
    ),
    Wording(
        "fewer devices than stages",
        lambda _: _pipeline(splits=2, devices=["cpu:0"]),
        ValueError,
        "['cpu:0']",
        "pipe.devices: The stages need 2 devices, but 1 are named: ['cpu:0']. Change "
        "splits, stages_per_device or devices.",
    ),
    # ---- Schedules from files.
    Wording(
        "a cell that is no operation",
        lambda folder: _pipeline_by_file(folder, "F0.0,X1,B0.0\n"),
        ValueError,
        "'X1'",
        "pipe.schedule: {folder}/mine.csv is not a schedule: line 1, cell 2: 'X1' is "
        "not an operation; write its kind, micro-batch and stage, as in 'F0.1' for the "
        "forward of micro-batch 0 on stage 1.",
    ),
    Wording(
        "a file for fewer micro-batches",
        lambda folder: _pipeline_by_file(folder, "F0.0,B0.0\n", num_micro_batches=2),
        ValueError,
        "{folder}/mine.csv",
        "pipe.schedule: The schedule '{folder}/mine.csv' is for 1 devices, 1 stages "
        "and 1 micro-batches, but the pipeline has 1 devices, 1 stages and 2 "
        "micro-batches. Change one of them.",
    ),
    Wording(
        "devices that wait for each other",
        lambda folder: _pipeline_by_file(folder, "F0.0,B0.0\nB0.1,F0.1\n", splits=2),
        ValueError,
        "{folder}/mine.csv",
        "pipe.schedule: The schedule '{folder}/mine.csv': This schedule can't be "
        "run: device 0 waits forever in the backward of micro-batch 0 on stage 0 for "
        "the backward of micro-batch 0 on stage 1; device 1 waits forever in the "
        "backward of micro-batch 0 on stage 1 for the forward of micro-batch 0 on "
        "stage 1.",
    ),
    # ---- Plans.
    Wording(
        "a model that fits nowhere",
        lambda _: plan(_large_model, Resources(DEVICES["A100"], 2, 4), Constraints()),
        NothingFits,
        "A100",
        "The model does not fit: A100 has 38.1 GiB per device for it, and the smallest "
        "way on 2 A100 needs 38.4 GiB, 0.27 GiB more: K=2 M=4 1f1b, recompute=always. "
        "It would fit on 2 H100. More devices do not help: cell 0 alone needs at least "
        "38.4 GiB.",
    ),
    Wording(
        "fixed stages beside a schedule that is auto",
        lambda _: extract_auto(PipeliningLayer.Params().Set(schedule="auto", splits=2)),
        ValueError,
        "splits",
        "task.pipeline: with schedule auto, splits must be auto too, got 2. Change "
        "these params, or set numbers and names instead of auto.",
    ),
]
