"""Pretrained tasks of KerasHub on devices of which none holds the weights.

They are loaded, tuned, generate and are saved as by plain KerasHub on one device.
"""

from __future__ import annotations

import collections
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import lingvo_pipe as lp
from lingvo_pipe.keras.cells.placement import deferred_variables
from lingvo_pipe.keras.cells.private_names import stored_variable
from lingvo_pipe.keras.pipelined_model import PipelinedModel
from tests.keras.toy_models import assert_close, assert_same
from tests.support.cases import fast_cases
from tests.support.command_line import CommandLine
from tests.support.errors import fails
from tests.support.presets import SENTENCES, write_preset

hub = pytest.importorskip("keras_hub")  # It needs Python 3.11.

PROMPTS = ["the quick", "a", "it was"]
# A family, what is tuned, and the numbers of devices and micro-batches.
TUNED = [
    ("GPT2", "LoRA", 2, 1),
    ("GPT2", "LoRA", 4, 1),
    ("GPT2", "full", 4, 4),
    ("Gemma", "LoRA", 4, 4),
    ("Gemma", "QLoRA", 4, 1),
]


def bytes_of(variables: Iterable[keras.Variable]) -> int:
    return sum(v.value.dtype.size * v.shape.num_elements() for v in variables)


def loaded(preset: str, tuning: str) -> Any:
    """Returns a task whose variables are as `tuning` needs them."""
    random.seed(1)  # TensorFlow's seed would end the tokenizers that were made before.
    task = hub.models.CausalLM.from_preset(preset)
    if tuning == "QLoRA":
        task.backbone.quantize("int8")
    if tuning != "full":
        task.backbone.enable_lora(4)
    return task


def dataset(batch_size: int) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(SENTENCES).batch(batch_size)


def tuned(model: Any, batch_size: int, epochs: int) -> list[Any]:
    """Trains on sentences, and returns the losses and metrics of the epochs.

    They are in a list or, for large batches, in a dataset.
    """

    def weights() -> list[np.ndarray]:
        return [v.numpy() for v in model.trainable_variables]

    before = weights()
    model.compile(
        keras.optimizers.SGD(0.005, momentum=0.5), sampler="greedy", jit_compile=False
    )
    sentences: Any = SENTENCES if epochs > 1 else SENTENCES[:4]
    options: dict[str, Any] = {"batch_size": batch_size}
    if batch_size > 2:
        sentences, options = dataset(batch_size), {}
    history = model.fit(sentences, epochs=epochs, verbose=0, shuffle=False, **options)
    assert not any(np.array_equal(a, b) for a, b in zip(before, weights(), strict=True))
    return [*history.history.values()]


def generated(model: Any, prompts: list[str]) -> list[str]:
    return model.generate(prompts, max_length=8, stop_token_ids=None)


@pytest.mark.parametrize(
    ("family", "tuning", "num_devices", "num_micro_batches"),
    fast_cases(TUNED, TUNED[:1]),
)
def test_a_preset_larger_than_a_device_is_tuned(
    tmp_path: Path, family: str, tuning: str, num_devices: int, num_micro_batches: int
) -> None:
    # Dropout takes time. Its gradients differ in the last digits, which int8 enlarges.
    sizes = {"num_layers": num_devices}
    options = {"dropout": 0.0} if num_devices == 2 or tuning == "QLoRA" else {}
    preset = write_preset(tmp_path / "p", family, **sizes, **options)
    batch_size = max(2, num_micro_batches)
    plain = loaded(preset, tuning)
    with deferred_variables():
        task = loaded(preset, tuning)
    assert all(stored_variable(v) is None for v in task.variables)
    limit = bytes_of(plain.variables) * 95 // 100
    pipelined = PipelinedModel(
        task,
        devices=num_devices,
        num_micro_batches=num_micro_batches,
        batch_size=None if tuning == "QLoRA" else batch_size,
        splits="auto",
        # One kernel in float32, as QLoRA needs it, takes more than so few in int8.
        memory_limit=None if tuning == "QLoRA" else limit,
    )
    assert_same([plain.variables, task.variables])
    on_devices = collections.defaultdict(list)
    for v in task.variables:
        on_devices[v.value.device].append(v)
    assert len(on_devices) == num_devices
    assert all(bytes_of(x) < limit for x in on_devices.values())
    compare = assert_same if batch_size == 2 and tuning != "full" else assert_close
    epochs = 1 if num_devices == 2 else 24 * batch_size // len(SENTENCES)
    assert_close([tuned(x, batch_size, epochs) for x in (plain, pipelined)])
    compare([plain.variables, task.variables])
    models = {"plain": plain, "pipelined": pipelined}
    reopened = []
    for name, model in models.items():
        model.save_to_preset(tmp_path / name)
        reopened.append(hub.models.CausalLM.from_preset(f"{tmp_path / name}"))
    compare([x.weights for x in reopened])  # Seeds of dropout are not saved.
    if tuning == "QLoRA":  # The preset is quantized.
        with deferred_variables():
            again = hub.models.CausalLM.from_preset(f"{tmp_path / 'pipelined'}")
        PipelinedModel(again, devices=2)
        assert "int8" in {v.dtype for v in again.weights}
        assert_same([x.weights for x in (reopened[-1], again)])
    # For two devices, two groups of one size, which are traced once.
    prompts = PROMPTS[:num_devices]
    assert generated(pipelined, prompts) == generated(plain, prompts)
    if num_devices == 2:
        return
    assert_close([x.evaluate(dataset(16), verbose=0) for x in models.values()])
    outputs = [x.predict(PROMPTS, verbose=0) for x in models.values()]
    assert_close(outputs, 1e-4, 1e-5)
    files = {name: tmp_path / f"{name}.keras" for name in models}
    for name, path in files.items():
        models[name].save(path)
    opened = [keras.models.load_model(x, compile=False) for x in files.values()]
    compare([x.weights for x in opened])


@pytest.mark.exhaustive
def test_texts_are_taken_and_returned_as_by_plain_kerashub(tmp_path: Path) -> None:
    preset = write_preset(tmp_path / "p")
    plain, task = loaded(preset, "full"), loaded(preset, "full")
    pipelined: Any = PipelinedModel(task, devices=2)
    for model in (plain, pipelined):
        model.compile(sampler="greedy", jit_compile=False)
    for prompts in (PROMPTS, PROMPTS[0]):
        for strip_prompt in (False, True):
            options = {"max_length": 8, "strip_prompt": strip_prompt}
            expected = plain.generate(prompts, **options)
            assert pipelined.generate(prompts, num_groups=2, **options) == expected
    assert pipelined.export_to_transformers == task.export_to_transformers
    with fails(path="assistant_model"):
        pipelined.generate(PROMPTS, assistant_model=plain)


class Doubling(hub.models.Task):  # type: ignore[name-defined]
    """A task that is given doubled inputs by its preprocessor."""

    def __init__(self) -> None:
        x = keras.Input((4,))
        super().__init__(inputs=x, outputs=keras.layers.Dense(3)(x), compile=False)
        self.preprocessor = lambda x: 2.0 * x


def test_preprocessing_is_switched_off_as_in_kerashub() -> None:
    """It was not: the attribute was set where nothing read it."""
    x, outputs = np.ones((2, 4), "float32"), []
    for is_pipelined in (False, True):
        keras.utils.set_random_seed(1)
        task: Any = Doubling()
        trained = PipelinedModel(task) if is_pipelined else task
        outputs.append([trained.predict(x, verbose=0)])
        trained.preprocessor = None
        outputs[-1].append(trained.predict(x, verbose=0))
        assert task.preprocessor is trained.preprocessor is None
    assert_close(outputs)
    assert_close([[2.0 * outputs[1][1]], [outputs[1][0]]])


def planned_task() -> Any:
    """Returns the task of a preset in the current folder, without its weights."""
    return hub.models.CausalLM.from_preset("./p", load_weights=False)


@pytest.mark.exhaustive
def test_a_preset_is_planned_without_its_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_preset(tmp_path / "p")
    monkeypatch.chdir(tmp_path)
    plan = lp.plan(planned_task, "2x80GB@1TFLOPS", 8, length=8, num_stages=2)
    assert f"{planned_task().backbone.count_params():,} parameters" in str(plan)


def test_unknown_sizes_are_given_to_choose_stages() -> None:
    layers = [keras.layers.Embedding(5, 4), keras.layers.Dense(3)]
    model = keras.Sequential([keras.Input((None,), dtype="int32"), *layers])
    for splits, length in (("auto", None), ("auto", 0), (2, 7)):
        with fails(path="PipelinedModel(sequence_length=...)", got=length):
            PipelinedModel(model, devices=2, splits=splits, sequence_length=length)
    pipelined = PipelinedModel(model, devices=2, splits="auto", sequence_length=7)
    assert pipelined.pipeline.num_stages == 2


MEASURE = """
import resource
import sys

import keras_hub
import lingvo_pipe as lp

def peak():
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

lp.initialize_devices(2)
for preset in sys.argv[1:]:
    before = peak()
    with lp.keras.deferred_variables():
        task = keras_hub.models.CausalLM.from_preset(preset)
    loaded = peak()
    lp.keras.PipelinedModel(task, devices=2)
print(loaded - before, peak() - before)
"""


@pytest.mark.exhaustive
def test_loading_takes_the_hosts_memory_once(tmp_path: Path) -> None:
    """The virtual devices' memory is the host's, so placing may take a bit more."""
    sizes = {"num_layers": 26, "hidden_dim": 512, "intermediate_dim": 2048}
    small = write_preset(tmp_path / "small", "Gemma")
    large = write_preset(tmp_path / "large", "Gemma", **sizes)
    num_bytes = (tmp_path / "large" / "model.weights.h5").stat().st_size
    assert num_bytes > 1.5e8
    program = CommandLine(tmp_path).start("-c", MEASURE, small, large)
    output, errors = program.communicate()
    assert program.returncode == 0, errors
    loading, placing = map(int, output.split())
    assert loading < 1.3 * num_bytes
    assert placing < 1.5 * num_bytes
