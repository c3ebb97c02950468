"""The texts of errors about layers, pipelines, their schedules and their plans."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.base_layer import BaseLayer
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.layers.dropout import DropoutLayer
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from lingvo_pipe.pipeline.splitting.cell_seconds import CellSeconds
from lingvo_pipe.pipeline.stage_memory import CallBytes
from lingvo_pipe.planner.constraints import Constraints
from lingvo_pipe.planner.device_model import DEVICES
from lingvo_pipe.planner.model_costs import ModelCosts
from lingvo_pipe.planner.planning import NothingFits, plan
from lingvo_pipe.planner.resources import Resources
from lingvo_pipe.planner.settle_auto import take_auto
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
        at_work=[(0,)] * 3,
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
        "A layer must have a name of letters, digits, '_', '-' and '.', a letter or "
        "digit first and without '/'; FCLayer has ''. Set it: params.Set(name='...').",
    ),
    Wording(
        "two children of one name",
        lambda _: _users(
            lambda layer: [layer.CreateChild("inner", _dense()) for _ in range(2)]
        ),
        ValueError,
        "'inner'",
        "A layer's parts must have names of their own, unlike its methods'; block has "
        "'inner' already. Choose another name.",
    ),
    Wording(
        "a layer in place of its params",
        lambda _: _users(
            lambda layer: layer.CreateChild("inner", _dense(name="fc").Instantiate())
        ),
        ValueError,
        "block/inner",
        "A child is created from a layer's Params; block/inner was to be created from "
        "a FCLayer. Pass TheLayer.Params().",
    ),
    Wording(
        "a shape in place of WeightParams",
        lambda _: _users(lambda layer: layer.CreateVariable("w", [8, 8])),
        ValueError,
        "[8, 8]",
        "CreateVariable must be given WeightParams; block/w was to be created from a "
        "list, [8, 8]. Write WeightParams(shape=[...]).",
    ),
    Wording(
        "a dimension left out",
        lambda _: FCLayer.Params().Set(name="fc", output_dim=4).Instantiate(),
        ValueError,
        "[0, 4]",
        "Every dimension of a variable or accumulator must be an integer of at least "
        "1; fc/w has shape [0, 4]. Check the layer's params.",
    ),
    Wording(
        "inputs of other channels",
        lambda _: _dense(name="fc").Instantiate()(tf.zeros([2, 5])),
        ValueError,
        "(2, 5)",
        "The inputs' last dimension must be the layer's 3 channels; fc got inputs of "
        "shape (2, 5). Check the layer's params and those of the layer before.",
    ),
    Wording(
        "a probability above 1",
        lambda _: DropoutLayer.Params().Set(name="drop", keep_prob=1.5).Instantiate(),
        ValueError,
        "keep_prob",
        "keep_prob must lie in (0, 1]; drop has 1.5.",
    ),
    # ---- Params of pipelines.
    Wording(
        "no micro-batches",
        lambda _: _pipeline(num_micro_batches=0),
        ValueError,
        "num_micro_batches",
        "num_micro_batches must be an integer of at least 1; that of pipe is 0. Set it "
        "to 1 to leave the mini-batch whole.",
    ),
    Wording(
        "replicas that do not divide the micro-batches",
        lambda _: _pipeline(num_micro_batches=3, num_replicas=2),
        ValueError,
        "num_replicas",
        "num_micro_batches must be a multiple of num_replicas, so that all parts have "
        "as many; pipe has num_micro_batches 3 and num_replicas 2. Change one of them.",
    ),
    Wording(
        "more stages than layers",
        lambda _: _pipeline(splits=5),
        ValueError,
        "splits of pipe",
        "splits of pipe: The number of stages must lie between 1 and the number of "
        "layers, 4; got 5. A stage can't be empty: use fewer stages or devices.",
    ),
    Wording(
        "a stage without layers",
        lambda _: _pipeline(splits=[2, 2, 4]),
        ValueError,
        "[2, 2, 4]",
        "splits of pipe: splits must list the ends of the stages: integers that ascend "
        "strictly up to the number of layers, 4; in [2, 2, 4] stage 1 is empty, from 2 "
        "to 2. Give for each stage the number of layers up to and including it.",
    ),
    Wording(
        "unknown schedule",
        lambda _: _pipeline(schedule="gpip"),
        ValueError,
        "'gpip'",
        "schedule of pipe: A schedule must be one of 'gpipe', '1f1b', 'zero_bubble', "
        "'local', 'interleaved', or a path ending in '.csv'; got 'gpip'. Did you mean "
        "'gpipe'?",
    ),
    Wording(
        "unknown recomputation",
        lambda _: _pipeline(recompute="allways"),
        ValueError,
        "'allways'",
        "recompute must be None, one of 'always', 'except_last', 'never', or a list of "
        "indices of cells; that of pipe is 'allways'. Did you mean 'always'? Count "
        "cells from 0, name each once; or leave it None, for the schedule's own.",
    ),
    Wording(
        "fewer devices than stages",
        lambda _: _pipeline(splits=2, devices=["cpu:0"]),
        ValueError,
        "['cpu:0']",
        "devices of pipe: Each stage needs a device, or each stages_per_device of "
        "them; they need 2, and 1 are named: ['cpu:0']. Change splits, "
        "stages_per_device or devices.",
    ),
    # ---- Schedules from files.
    Wording(
        "a cell that is no operation",
        lambda folder: _pipeline_by_file(folder, "F0.0,X1,B0.0\n"),
        ValueError,
        "'X1'",
        "schedule of pipe: {folder}/mine.csv is no schedule: line 1, cell 2: 'X1' is "
        "no operation; write its kind, micro-batch and stage, as in 'F0.1' for the "
        "forward of micro-batch 0 on stage 1.",
    ),
    Wording(
        "a file for fewer micro-batches",
        lambda folder: _pipeline_by_file(folder, "F0.0,B0.0\n", num_micro_batches=2),
        ValueError,
        "{folder}/mine.csv",
        "schedule of pipe: The schedule '{folder}/mine.csv' is for 1 devices, 1 stages "
        "and 1 micro-batches, but is to run with 1 devices, 1 stages and 2 "
        "micro-batches: change the one or the other.",
    ),
    Wording(
        "devices that wait for each other",
        lambda folder: _pipeline_by_file(folder, "F0.0,B0.0\nB0.1,F0.1\n", splits=2),
        ValueError,
        "{folder}/mine.csv",
        "schedule of pipe: The schedule '{folder}/mine.csv': This schedule can't be "
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
        "A device must hold its share of the model; A100 has 38.1 GiB for it, and the "
        "least that any way on 2 A100 needs is 38.2 GiB, 86.2 MiB more: K=2 M=4 1f1b, "
        "recompute=always. It would fit on 2 H100. More devices don't help: cell 0 by "
        "itself needs 38.2 GiB at least.",
    ),
    Wording(
        "stages settled beside a schedule that is auto",
        lambda _: take_auto(PipeliningLayer.Params().Set(schedule="auto", splits=2)),
        ValueError,
        "splits",
        "Where params of task.pipeline are auto, here schedule, splits must be auto "
        "too, not 2. Change these, or give numbers and names.",
    ),
]
