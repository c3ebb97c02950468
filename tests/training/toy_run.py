"""A run of three steps that takes very little time."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams, Params
from lingvo_pipe.layers.batch_norm import BatchNormLayer
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.models.images.image_classifier import ImageClassifier
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.devices import stage_devices  # noqa: F401  Asks for several.
from lingvo_pipe.training.checkpoint.checkpoint_files import steps_in
from lingvo_pipe.training.loop.save_times import SaveRequest
from lingvo_pipe.training.loop.training_loop import train
from lingvo_pipe.training.optim.keras_optimizer import OptimizerParams, ScheduleParams
from lingvo_pipe.training.run.run_directory import RunDirectory
from lingvo_pipe.training.task.base_task import BaseTask

BATCH, STEPS, CLASSES = 4, 3, 2
PARAMS = "task.name : 'task'\n"  # The params text of all runs.


class Input:
    """An input with given batches."""

    def __init__(self, *batches: NestedMap):
        self.params = Params()
        self.params.Define("batch_size", BATCH, "")
        self._batches = tf.nest.map_structure(lambda *x: np.stack(x), *batches)

    @property
    def element_spec(self) -> Any:
        return self.TrainBatches().element_spec

    def TrainBatches(self, start_step: int = 0) -> Any:
        return tf.data.Dataset.from_tensor_slices(self._batches).skip(start_step)

    def EvalBatches(self) -> Any:
        return self.TrainBatches()


def batch(seed: int, scale: float = 1.0, num_padding: int = 0) -> NestedMap:
    random = np.random.default_rng(seed)
    return NestedMap(
        image=(scale * random.normal(size=[BATCH, 3])).astype(np.float32),
        label=random.integers(CLASSES, size=BATCH).astype(np.int32),
        weight=np.float32(np.arange(BATCH) < BATCH - num_padding),
    )


def make_task(num_stages: int = 1, **train_params: Any) -> BaseTask:
    p = ImageClassifier.Params().Set(name="task")
    p.pipeline.Set(
        cell_tpl=[
            FCLayer.Params().Set(input_dim=3, output_dim=5, activation="RELU"),
            FCLayer.Params().Set(input_dim=5, output_dim=CLASSES),
        ],
        splits=num_stages,
        num_micro_batches=2,
    )
    p.train.Set(learning_rate=0.1, max_steps=STEPS, save_interval_steps=1)
    p.train.Set(**train_params)
    p.eval.images = False  # A graph of their own, to be built by each run.
    return p.Instantiate()


def published_params(
    num_classes: int = CLASSES, num_stages: int = 1
) -> InstantiableParams:
    """Returns params of a network with batch norm, trained as AmoebaNet is."""
    p = ImageClassifier.Params().Set(name="task")
    p.pipeline.Set(
        cell_tpl=[
            FCLayer.Params().Set(name="in", input_dim=3, output_dim=5, has_bias=False),
            BatchNormLayer.Params().Set(name="norm", dim=5, decay=0.5),
            FCLayer.Params().Set(name="mid", input_dim=5, output_dim=5),
            FCLayer.Params().Set(name="out", input_dim=5, output_dim=num_classes),
        ],
        splits=num_stages,
        num_micro_batches=2,
    )
    decay = ScheduleParams("ExponentialDecay", decay_steps=2, decay_rate=0.9)
    p.train.Set(
        max_steps=STEPS,
        save_interval_steps=1,
        learning_rate=0.1,
        lr_schedule=ScheduleParams("LinearWarmup", warmup_steps=2, schedule=decay),
        optimizer=OptimizerParams(
            "RMSpropFromOnes", rho=0.9, momentum=0.9, epsilon=0.1
        ),
        l2_regularizer_weight=0.1,
        l2_regularizer_scales=[("/(b|beta|gamma)$", 0.0)],
        clip_gradient_norm_to_value=0.2,
        ema_decay=0.9,
        ema_decay_moving_vars=True,
    )
    p.eval.images = False
    return p


def run(
    task: BaseTask,
    data: Any,
    logdir: Path,
    log: Callable[[str], None] | None = None,
    profile_step: int | None = None,
    save_request: SaveRequest | None = None,
) -> dict[str, float]:
    directory, test = RunDirectory(logdir, "toy.Toy"), Input(batch(9))
    log = log or (lambda _: None)
    return train(
        *(task, data, test, directory, PARAMS, log, profile_step),
        save_request=save_request,
    )


def resumed_steps(logged: Iterable[str]) -> list[int]:
    """Returns the steps from which a run was resumed, from its log."""
    return [int(n) for line in logged for n in re.findall(r"^Resumed\D*(\d+)", line)]


def saved_steps(logdir: Path) -> list[int]:
    return steps_in(logdir / "checkpoints")


def events(folder: Path, plugin: str) -> list[tuple[int, str, Any]]:
    """Returns step, tag and content of a folder's events for a TensorBoard plugin."""
    return [
        (event.step, value.tag, tf.make_ndarray(value.tensor))
        for path in sorted(folder.iterdir())
        for event in tf.compat.v1.train.summary_iterator(str(path))
        for value in event.summary.value
        if value.metadata.plugin_data.plugin_name == plugin
    ]


def saved_bytes(logdir: Path, step: int) -> dict[str, bytes]:
    """Returns the bytes of the variables in a checkpoint by name."""
    reader = tf.train.load_checkpoint(str(logdir / f"checkpoints/ckpt-{step:08d}"))
    names = reader.get_variable_to_shape_map()
    return {name: np.asarray(reader.get_tensor(name)).tobytes() for name in names}
