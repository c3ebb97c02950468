"""Random settings of five models: params that a user could write, valid or not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.dense import ActivationLayer, FCLayer
from lingvo_pipe.layers.dropout import DropoutLayer
from lingvo_pipe.models.images.image_classifier import ImageClassifier
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.schedules.by_name import V_SHAPED_NAMES
from lingvo_pipe.training.optim.keras_optimizer import OptimizerParams, ScheduleParams
from tests.models.transformer.small_models import (
    alone,
    language_model_task,
    predicted,
    sentences,
    translation_batch,
    translation_task,
)
from tests.training.toy_run import published_params

_BATCH, _CLASSES = 8, 3
_NUM_TOKENS = 6


class Model(NamedTuple):
    """Params of a task, and its batches by step."""

    make_params: Callable[[], InstantiableParams]
    make_batch: Callable[[int], NestedMap]


class Settings(NamedTuple):
    """Params of a run, by path, and of its resumption with the same bytes.

    Both may be wrong if `may_be_refused`.
    """

    model: str
    values: dict[str, Any]
    resumed: dict[str, Any]
    may_be_refused: bool


def _lengths() -> list[int]:
    return [i % 3 + 1 for i in range(_BATCH)]


def _image_batch(step: int) -> NestedMap:
    random = np.random.default_rng(step)
    return NestedMap(
        image=random.normal(size=[_BATCH, 3]).astype(np.float32),
        label=random.integers(_CLASSES, size=_BATCH).astype(np.int32),
        weight=np.ones(_BATCH, np.float32),
    )


def _translation_batch(step: int) -> NestedMap:
    sources, targets = (sentences(_lengths(), 2 * step + i) for i in range(2))
    return translation_batch(alone(sources), alone(targets))


def _text_batch(step: int) -> NestedMap:
    return predicted(alone(sentences(_lengths(), step)), _NUM_TOKENS)


def _image_params(*cells: InstantiableParams) -> InstantiableParams:
    p = ImageClassifier.Params().Set(name="task")
    p.pipeline.cell_tpl = list(cells)
    return p


def _dense(size: int = 5, outputs: int = 5) -> InstantiableParams:
    return FCLayer.Params().Set(input_dim=size, output_dim=outputs, activation="TANH")


def _without_weights() -> InstantiableParams:
    """Returns a model whose stages may have no weights, the first one among them."""
    drop = DropoutLayer.Params().Set(keep_prob=0.8)
    relu = ActivationLayer.Params().Set(activation="RELU")
    return _image_params(drop, _dense(3), relu, drop, _dense(5, _CLASSES))


MODELS = {
    "batch_norm": Model(lambda: published_params(_CLASSES, 1), _image_batch),
    "one_cell": Model(lambda: _image_params(_dense(3, _CLASSES)), _image_batch),
    "without_weights": Model(_without_weights, _image_batch),
    # Token ids pass from stage to stage.
    "translation": Model(
        lambda: translation_task(tied=True, dropout_prob=0.1), _translation_batch
    ),
    "language_model": Model(lambda: language_model_task(num_layers=3), _text_batch),
}

_PER_DEVICE = {
    **dict.fromkeys(("gpipe", "1f1b", "zero_bubble", "local"), 1),
    **dict.fromkeys(("interleaved", "interleaved_zero_bubble", *V_SHAPED_NAMES), 2),
}
_MAX_DEVICES = 8  # That the tests have.
_RECOMPUTED: Sequence[Any] = (None, None, "always", "never", "except_last", [0], [])
# Of a resumption, these may be others with the same bytes.
_REPORTS: dict[str, Sequence[Any]] = {
    "train.steps_per_loop": (1, 2, 3),
    "train.save_interval_steps": (1, 2, 100),
    "train.report_interval_steps": (1, 10),
    "train.keep_checkpoints": (1, 5),
    "train.histogram_interval_steps": (None, 1),
    "eval.images": (False, True),
}
_TRAINING: dict[str, Sequence[Any]] = {
    "pipeline.state_dtype": (None, tf.bfloat16),
    "train.optimizer": (
        OptimizerParams("SGD", momentum=0.9),
        OptimizerParams("Adam"),
        OptimizerParams("Adam", gradient_accumulation_steps=2),
        OptimizerParams("Adafactor"),
        OptimizerParams("Nadam"),
        OptimizerParams("Lamb"),
    ),
    "train.lr_schedule": (
        None,
        ScheduleParams("CosineDecay", decay_steps=3),
        ScheduleParams("InverseTimeDecay", decay_steps=1, decay_rate=0.5),
    ),
    "train.clip_gradient_single_norm_to_value": (None, 0.1),
    "train.l2_regularizer_weight": (0.01, 0.1),
    "train.ema_decay": (0.0, 0.9),
    "train.max_skipped_steps": (0, 0, 2),
    "train.loss_spike_factor": (None, 10.0),
    "train.bprop_variable_exclusion": (None, "/b$"),
    "eval.interval_steps": (None, 1, 2),
    "eval.best_metric": (None, "-loss"),
}
_CLIP_NORM = "train.clip_gradient_norm_to_value"
_WRONG: dict[str, Sequence[Any]] = {
    "pipeline.splits": (0, 99, [], [0, 3], [2, 1], "automatic"),
    "pipeline.schedule": ("gpip", None, 3),
    "pipeline.stages_per_device": (0, 3),
    "pipeline.num_replicas": (0, 3, 2.5),
    "pipeline.num_micro_batches": (0, 3, 16, None),
    "pipeline.micro_batch_size": (0, 3),
    "pipeline.recompute": ("sometimes", [99], [-1]),
    "pipeline.offload": ("sometimes", [99], []),
    "pipeline.memory_limit": (0, 1 << 10),
    "pipeline.cell_costs": ("measured", [1.0], "guessed"),
    "pipeline.batch_dim": (1, -1),
    "pipeline.state_dtype": ("float", tf.int32),
    "train.learning_rate": (0.0, None, "fast"),
    "train.optimizer": (OptimizerParams("SGB"), OptimizerParams("Lamb", momentum=1)),
    "train.ema_decay": (1.5, -1.0),
    "train.clip_gradient_norm_to_value": (0.1, -1.0, "all"),
    "train.bprop_variable_exclusion": (".*", "(", 3),
    "train.steps_per_loop": (0, 1.5),
    "train.save_interval_steps": (0, None),
    "eval.best_metric": ("nothing", 3),
    "eval.patience": (0, 1, "long"),
    "eval.interval_steps": (0, 0.5),
}
_WRONG_SHARE = 0.15
# Of the first run, so that there is a checkpoint to resume from.
_KEPT = {"train.save_interval_steps": 1, "train.keep_checkpoints": 5}


def random_settings(seed: int) -> Settings:
    """Returns the settings of a seed."""
    random = np.random.default_rng(seed)
    name = list(MODELS)[seed % len(MODELS)]
    num_cells = len(MODELS[name].make_params().pipeline.cell_tpl)
    shards = int(random.choice([1, 1, 2]))
    fixed = {
        "pipeline.num_batch_shards": shards,
        "pipeline.num_micro_batches": shards * int(random.choice([1, 2, 4])),
        **_some(random, _TRAINING),
    }
    first, resumed = (
        _compatible(
            name,
            {
                **fixed,
                **_layout(random, num_cells, shards),
                **_some(random, _REPORTS),
            },
        )
        for _ in range(2)
    )
    wrong: dict[str, Any] = {}
    if random.random() < _WRONG_SHARE:
        wrong = _some(random, _WRONG, share=1 / len(_WRONG))
    return Settings(name, first | _KEPT | wrong, resumed | wrong, bool(wrong))


def _compatible(model: str, values: dict[str, Any]) -> dict[str, Any]:
    """Returns valid params that exclude each other as params that do not."""
    if values.get("train.clip_gradient_single_norm_to_value"):
        values[_CLIP_NORM] = None
    if values.get("train.steps_per_loop", 1) > 1:
        # Each stage updates its own weights.
        p = MODELS[model].make_params()
        needs_all_stages = (
            values["pipeline.num_batch_shards"] > 1
            or values.get(_CLIP_NORM, p.train.clip_gradient_norm_to_value)
            or values.get("train.max_skipped_steps")
            or values.get("train.optimizer", p.train.optimizer).name == "Nadam"
            or p.pipeline.tied
        )
        if needs_all_stages:
            values["train.steps_per_loop"] = 1
    return values


def _layout(random: Any, num_cells: int, shards: int) -> dict[str, Any]:
    """Returns params of the stages, their devices and their schedule."""
    replicas = int(random.choice([1, shards]))
    schedule = str(random.choice(list(_PER_DEVICE)))
    per_device = _PER_DEVICE[schedule]
    if per_device > num_cells:
        schedule, per_device = "gpipe", 1
    devices = min(num_cells // per_device, _MAX_DEVICES // replicas, 4)
    number = int(random.integers(1, devices + 1)) * per_device
    splits: Any = number
    if random.random() < 0.3:
        inner = random.choice(np.arange(1, num_cells), number - 1, replace=False)
        splits = [*sorted(map(int, inner)), num_cells]
    recompute = _RECOMPUTED[random.integers(len(_RECOMPUTED))]
    return {
        "pipeline.splits": splits,
        "pipeline.schedule": schedule,
        "pipeline.stages_per_device": per_device,
        "pipeline.num_replicas": replicas,
        "pipeline.recompute": recompute,
        "pipeline.offload": "always" if recompute == "never" and number > 1 else None,
    }


def _some(
    random: Any, choices: dict[str, Sequence[Any]], share: float = 0.4
) -> dict[str, Any]:
    return {
        name: values[random.integers(len(values))]
        for name, values in choices.items()
        if random.random() < share
    }
