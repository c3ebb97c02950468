"""The small model, one of whose devices fails after some steps.

While there is a file `faulty`, a step fails, and cpu:1 no longer computes. The file is
removed when cpu:1 is found.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf
from mine.small_model import Small  # type: ignore[import-not-found]

import model_registry
from lingvo_pipe.fault_tolerance import device_faults
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.input.images.image_input import ImageClassificationInput
from lingvo_pipe.nested_map import NestedMap

_STEP = 7  # After which the next one fails.
_FAULTY, _compute = Path("faulty"), device_faults._compute


def _compute_or_fail(device: str, answer: threading.Event) -> None:
    if device.endswith("CPU:1") and _FAULTY.exists():
        _FAULTY.unlink()
    else:
        _compute(device, answer)


device_faults._compute = _compute_or_fail


class FailingInput(ImageClassificationInput):
    """Images, with which a step fails as if by its device."""

    def TrainBatches(self, start_step: int = 0, place: str = "") -> tf.data.Dataset:
        def batches() -> Iterator[NestedMap]:
            for step, batch in enumerate(images, start_step):
                if step == _STEP and _FAULTY.exists():
                    raise RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS")
                yield batch

        images = super().TrainBatches(start_step, place)
        spec = images.element_spec
        return tf.data.Dataset.from_generator(batches, output_signature=spec)


@model_registry.RegisterSingleTaskModel
class Failing(Small):
    """The small model."""

    def Train(self) -> InstantiableParams:
        p: Any = super().Train()
        p.cls = FailingInput
        return p
