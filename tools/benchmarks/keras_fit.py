"""Compares the speed of PipelinedModel.fit with plain Keras's fit.

    python -m tools.benchmarks.keras_fit

A step is a mini-batch of M micro-batches. Plain Keras accumulates the micro-batches'
gradients in its optimizer, on one core. A pipeline has a core for each device.
"""

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import Any

import numpy as np
from absl import app, flags

from lingvo_pipe.core.programs import program
from tools.benchmarks.worker_process import process_group

_NUM_MICRO_BATCHES = 8
_MODULE = "tools.benchmarks.keras_fit"
_DEVICES = (0, 1, 2)  # 0 is plain Keras.
_MEASURE = "measure"  # First argument of measuring processes; then model and devices.
_TURNS = flags.DEFINE_integer("turns", 7, "How often each is measured.", lower_bound=1)


def resnet() -> tuple[Any, np.ndarray, np.ndarray]:
    """Returns ResNet-50 for images `[B, 64, 64, 3]`, and a mini-batch."""
    import keras

    model = keras.applications.ResNet50(
        weights=None, input_shape=(64, 64, 3), classes=10
    )
    draw = np.random.default_rng(0)
    images = draw.random((64, 64, 64, 3), np.float32)
    return model, images, draw.integers(0, 10, 64)


def gpt2() -> tuple[Any, np.ndarray, np.ndarray]:
    """Returns four layers of GPT-2 small for ids `[B, T]`, and a mini-batch."""
    import keras
    from keras import layers

    num_tokens, length, dim = 8192, 128, 768
    ids = keras.Input((length,), dtype="int32")
    positions = keras.ops.cumsum(keras.ops.ones_like(ids), axis=1) - 1
    embedded = layers.Embedding(num_tokens, dim)(ids)
    x = layers.Add()([embedded, layers.Embedding(length, dim)(positions)])
    for _ in range(4):
        y = layers.LayerNormalization()(x)
        attend = layers.MultiHeadAttention(12, dim // 12, dropout=0.1)
        x = layers.Add()([x, attend(y, y, use_causal_mask=True)])
        y = layers.Dense(4 * dim, "gelu")(layers.LayerNormalization()(x))
        x = layers.Add()([x, layers.Dropout(0.1)(layers.Dense(dim)(y))])
    logits = layers.Dense(num_tokens)(layers.LayerNormalization()(x))
    rows = np.random.default_rng(0).integers(0, num_tokens, (32, length + 1))
    return keras.Model(ids, logits), rows[:, :-1], rows[:, 1:]


def mobilenet() -> tuple[Any, np.ndarray, np.ndarray]:
    """Returns MobileNetV2, which has many small cells, and a batch `[B, 32, 32, 3]`."""
    import keras

    model = keras.applications.MobileNetV2((32, 32, 3), weights=None, classes=10)
    draw = np.random.default_rng(0)
    return model, draw.random((16, 32, 32, 3), np.float32), draw.integers(0, 10, 16)


MODELS: dict[str, Callable[[], Any]] = {
    "resnet": resnet,
    "gpt2": gpt2,
    "mobilenet": mobilenet,
}


def measure(name: str, num_devices: int) -> None:
    """Prints a step's seconds and the number of cells, then again per line of input."""
    cores = sorted(os.sched_getaffinity(0))[: max(1, num_devices)]
    os.sched_setaffinity(0, cores)
    import keras

    from lingvo_pipe.keras.pipelined_model import PipelinedModel
    from lingvo_pipe.pipeline.devices.stage_devices import initialize_devices

    if num_devices:
        initialize_devices(num_devices)
    model, x, y = MODELS[name]()
    batch_size, accumulate = len(x), None
    if num_devices:
        model = PipelinedModel(
            model, num_devices, _NUM_MICRO_BATCHES, schedule="1f1b", recompute="never"
        )
    else:
        batch_size, accumulate = len(x) // _NUM_MICRO_BATCHES, _NUM_MICRO_BATCHES
    from_logits = name == "gpt2"
    model.compile(
        keras.optimizers.Adam(1e-4, gradient_accumulation_steps=accumulate),
        keras.losses.SparseCategoricalCrossentropy(from_logits),
    )
    num_cells = len(model.pipeline.cells) if num_devices else 0
    timer, go_on = _batch_timer(), True  # The first turn builds everything.
    while go_on:
        timer.seconds = 0.0
        model.fit(x, y, batch_size, verbose=0, shuffle=False, callbacks=[timer])
        print(timer.seconds, num_cells, flush=True)
        go_on = bool(sys.stdin.readline())


def _batch_timer() -> Any:
    """Returns a callback whose `seconds` add up the time of batches.

    The time of `fit` itself is no measure, because `fit` ends by waiting up to 5 s for
    a sleeping thread of tf.data, with any model.
    """
    import keras

    class BatchTimer(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            self._start = time.perf_counter()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.seconds += time.perf_counter() - self._start

    return BatchTimer()


def main(argv: Sequence[str]) -> None:
    """Runs the comparison, or a measuring process if the first argument asks for it."""
    if argv[1:2] == [_MEASURE]:
        measure(argv[2], int(argv[3]))
        return
    with program(argv):
        compare(MODELS, _TURNS.value)


def compare(names: Iterable[str], num_turns: int) -> None:
    """Prints a row for each model, with a measuring process per number of devices."""
    titles = ["model", *map(_title, _DEVICES), "cells", "a cell costs"]
    print(f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}")
    for name in names:
        with contextlib.ExitStack() as stack:
            groups = []
            for k in _DEVICES:
                command = [sys.executable, "-m", _MODULE, _MEASURE, name, str(k)]
                groups.append(stack.enter_context(process_group(name, [command])))
                groups[-1].answers()
            turns = [[g.turn()[0].split() for g in groups] for _ in range(num_turns)]
        times = np.array([[float(seconds) for seconds, _ in turn] for turn in turns])
        num_cells = int(turns[0][1][1])
        # The devices' loops run a cell forward and backward for each micro-batch.
        cost = median(times[:, 1] - times[:, 0]) / num_cells / _NUM_MICRO_BATCHES
        cells = [
            f"{median(times[:, 0]):.2f} s",
            *map(_text, times[:, 1:].T / times[:, 0]),
        ]
        print(f"| {name} | {' | '.join(cells)} | {num_cells} | {cost * 1e6:.0f} µs |")


def _text(ratios: np.ndarray) -> str:
    return f"{median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"


def _title(num_devices: int) -> str:
    return f"K={num_devices}, of plain" if num_devices else "plain Keras, a step"


if __name__ == "__main__":
    app.run(main)
