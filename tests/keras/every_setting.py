"""A training for each public name of Keras: losses, metrics, optimizers and so on."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import layers

_ROWS, _WIDTH, _CLASSES = 16, 6, 3
_RANDOM = np.random.default_rng(0)
_X = _RANDOM.normal(size=(_ROWS, _WIDTH)).astype("float32")
_LABELS = _RANDOM.integers(0, _CLASSES, _ROWS)
_ONE_HOT = np.eye(_CLASSES, dtype="float32")[_LABELS]
_ZEROS_AND_ONES = _RANDOM.integers(0, 2, (_ROWS, _CLASSES)).astype("float32")
_NUMBERS = _RANDOM.normal(size=(_ROWS, _CLASSES)).astype("float32")


@dataclass(frozen=True)
class Case:
    """A training by one setting."""

    make: Callable[[], keras.Model]
    data: tuple[Any, ...]
    compile_args: Callable[[], dict[str, Any]]
    fit_args: Callable[[], dict[str, Any]] = dict
    options: Mapping[str, Any] = field(default_factory=dict)


# No settings of a training, or with needs or a test of their own.
_LEFT_OUT = {
    "optimizers": {"ScheduleFreeAdamW"},
    "metrics": {"Mean", "Sum", "MeanMetricWrapper"},
    "callbacks": {"CallbackList", "OrbaxCheckpoint", "RemoteMonitor", "TensorBoard"},
    "initializers": {"STFT"},
}


def _model(activation: Any = None, **options: Any) -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((_WIDTH,)),
            layers.Dense(8, activation="tanh", **options),
            layers.Dropout(0.2, seed=1),
            layers.Dense(_CLASSES, activation=activation),
        ]
    )


# Losses and metrics, with the outputs' activation and targets; others take _NUMBERS.
_GROUPS: list[tuple[str, Any, np.ndarray]] = [
    (
        "CategoricalCrossentropy CategoricalFocalCrossentropy CategoricalHinge "
        "KLDivergence CategoricalAccuracy TopKCategoricalAccuracy OneHotIoU "
        "OneHotMeanIoU F1Score FBetaScore",
        "softmax",
        _ONE_HOT,
    ),
    (
        "SparseCategoricalCrossentropy CategoricalGeneralizedCrossEntropy "
        "SparseCategoricalAccuracy SparseTopKCategoricalAccuracy",
        "softmax",
        _LABELS,
    ),
    (
        "BinaryCrossentropy BinaryFocalCrossentropy Dice Tversky AUC BinaryAccuracy "
        "MeanSquaredLogarithmicError BinaryIoU FalseNegatives FalsePositives "
        "TrueNegatives TruePositives Precision PrecisionAtRecall Recall "
        "RecallAtPrecision SensitivityAtSpecificity SpecificityAtSensitivity Accuracy "
        "IoU MeanIoU",
        "sigmoid",
        _ZEROS_AND_ONES,
    ),
    ("Poisson", "softplus", np.abs(_NUMBERS)),
    ("Circle", lambda x: keras.ops.normalize(x, axis=-1), _LABELS),
]
_TARGETS = {name: target for names, *target in _GROUPS for name in names.split()}
_ARGUMENTS: dict[str, dict[str, Any]] = {
    "BinaryIoU": {"threshold": 0.5},
    "F1Score": {"average": "micro"},
    "FBetaScore": {"average": "macro"},
    "IoU": {"num_classes": 2, "target_class_ids": [0]},
    "MeanIoU": {"num_classes": 2},
    "OneHotIoU": {"num_classes": _CLASSES, "target_class_ids": [0]},
    "OneHotMeanIoU": {"num_classes": _CLASSES},
    "PrecisionAtRecall": {"recall": 0.5},
    "RecallAtPrecision": {"precision": 0.5},
    "SensitivityAtSpecificity": {"specificity": 0.5},
    "SpecificityAtSensitivity": {"sensitivity": 0.5},
    "SparseTopKCategoricalAccuracy": {"k": 2},
    "TopKCategoricalAccuracy": {"k": 2},
    "Constant": {"value": 0.1},
    "L1L2": {"l1": 0.01, "l2": 0.01},
    "MinMaxNorm": {"min_value": 0.3, "max_value": 0.6},
    "MaxNorm": {"max_value": 0.5},
}


def public_names(module: Any, base: type) -> list[str]:
    """Returns the public names of a module's classes, one for each class."""
    classes: dict[type, str] = {}
    for name in dir(module):
        value = getattr(module, name)
        if isinstance(value, type) and issubclass(value, base) and value is not base:
            classes.setdefault(value, name)
    return sorted(classes.values())


def _of(module: Any, name: str) -> Any:
    return getattr(module, name)(**_ARGUMENTS.get(name, {}))


def _case(loss: Any = "mse", optimizer: Any = None, **model: Any) -> Case:
    """Returns a case of numbers, with a new optimizer for each training."""
    make_optimizer = optimizer or (lambda: keras.optimizers.SGD(0.05, 0.9))
    return Case(
        lambda: _model(**model),
        (_X, _NUMBERS),
        lambda: {"optimizer": make_optimizer(), "loss": loss},
    )


def _loss(name: str) -> Case:
    if name == "CTC":
        return _ctc()
    activation, y = _TARGETS.get(name, (None, _NUMBERS))
    one = _case(_of(keras.losses, name), activation=activation)
    return replace(one, data=(_X, y))


def _ctc() -> Case:
    def make() -> keras.Model:
        kernels = layers.Conv1D(8, 3, padding="same"), layers.Dense(5)
        return keras.Sequential([keras.Input((10, _WIDTH)), *kernels])

    x = _RANDOM.normal(size=(_ROWS, 10, _WIDTH)).astype("float32")
    y = _RANDOM.integers(1, 5, (_ROWS, 4))
    return replace(_case(keras.losses.CTC()), make=make, data=(x, y))


def _metric(name: str) -> Case:
    activation, y = _TARGETS.get(name, (None, _NUMBERS))
    loss = "sparse_categorical_crossentropy" if y.ndim == 1 else "mse"
    return Case(
        lambda: _model(activation),
        (_X, y) if "IoU" in name else (_X, y, np.linspace(0.0, 2.0, _ROWS)),
        lambda: {
            "optimizer": "sgd",
            "loss": loss,
            "metrics": [_of(keras.metrics, name)],
            "weighted_metrics": [_of(keras.metrics, name)],
        },
    )


def _optimizer(name: str) -> Case:
    def optimizer() -> Any:
        if name == "LossScaleOptimizer":
            return keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.01))
        if name == "MultiOptimizer":
            made = {2: keras.optimizers.SGD(0.01), 1: keras.optimizers.Adam(0.01)}
            return keras.optimizers.MultiOptimizer(lambda v: made[len(v.shape)])
        has_epsilon = name not in ("Adafactor", "Ftrl", "Lion", "SGD")
        options = {"epsilon": 1e-3} if has_epsilon else {}
        return getattr(keras.optimizers, name)(0.01, **options)

    return _case(optimizer=optimizer)


def _of_kernel(setting: str) -> tuple[Any, type, Callable[[str], Case]]:
    """Returns the kind of a setting of kernels, such as "regularizer"."""
    module = getattr(keras, f"{setting}s")
    return (
        module,
        getattr(module, setting.capitalize()),
        lambda name: _case(**{f"kernel_{setting}": _of(module, name)}),
    )


def _policy(name: str) -> Case:
    # Others have floats of 16 bits.
    options = {} if name in ("float32", "float64") else {"tolerance": 0.02}
    return replace(_case(dtype=name), options=options)


def _callback(name: str) -> Case:
    folder = Path(tempfile.mkdtemp())
    made: dict[str, Callable[[], Any]] = {
        "BackupAndRestore": lambda: keras.callbacks.BackupAndRestore(
            tempfile.mkdtemp(dir=folder)
        ),
        "CSVLogger": lambda: keras.callbacks.CSVLogger(folder / "log.csv"),
        "EarlyStopping": lambda: keras.callbacks.EarlyStopping(
            "loss", min_delta=1.0, restore_best_weights=True
        ),
        "LambdaCallback": lambda: keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: None
        ),
        "LearningRateScheduler": lambda: keras.callbacks.LearningRateScheduler(
            lambda epoch: 0.1 / (epoch + 1)
        ),
        "ModelCheckpoint": lambda: keras.callbacks.ModelCheckpoint(
            folder / "model.weights.h5", save_weights_only=True
        ),
        "ReduceLROnPlateau": lambda: keras.callbacks.ReduceLROnPlateau(
            "loss", min_delta=10.0, patience=1
        ),
    }
    make = made.get(name, getattr(keras.callbacks, name))
    averages = name == "SwapEMAWeights"
    one = _case(optimizer=lambda: keras.optimizers.SGD(0.05, use_ema=averages))
    return replace(
        one,
        fit_args=lambda: {"callbacks": [make()], "epochs": 3},
        options={"num_micro_batches": (4,)},
    )


_KINDS: dict[str, tuple[Any, type, Callable[[str], Case]]] = {
    "losses": (keras.losses, keras.losses.Loss, _loss),
    "metrics": (keras.metrics, keras.metrics.Metric, _metric),
    "optimizers": (keras.optimizers, keras.optimizers.Optimizer, _optimizer),
    "regularizers": _of_kernel("regularizer"),
    "constraints": _of_kernel("constraint"),
    "initializers": _of_kernel("initializer"),
    "callbacks": (keras.callbacks, keras.callbacks.Callback, _callback),
}
POLICIES = ("float32", "float64", "mixed_bfloat16", "bfloat16", "mixed_float16")


def names(kind: str) -> list[str]:
    """Returns the public names of a kind that a case can be made of."""
    if kind == "dtype policies":
        return list(POLICIES)
    module, base, _ = _KINDS[kind]
    return sorted(set(public_names(module, base)) - _LEFT_OUT.get(kind, set()))


def case(kind: str, name: str) -> Case:
    """Returns the case of a name."""
    return _policy(name) if kind == "dtype policies" else _KINDS[kind][2](name)


KINDS = (*_KINDS, "dtype policies")
