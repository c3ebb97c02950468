"""The small model, whose steps take longer while there is a file `slow`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf
from mine.small_model import Small  # type: ignore[import-not-found]

import model_registry
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.input.images.image_input import ImageClassificationInput
from lingvo_pipe.nested_map import NestedMap

_SECONDS = 0.1


class SlowImages(ImageClassificationInput):
    """Images, read slowly."""

    def TrainBatches(self, start_step: int = 0) -> tf.data.Dataset:
        def batches() -> Iterator[NestedMap]:
            for batch in images:
                time.sleep(_SECONDS * Path("slow").exists())
                yield batch

        images = super().TrainBatches(start_step)
        return tf.data.Dataset.from_generator(
            batches, output_signature=images.element_spec
        )


@model_registry.RegisterSingleTaskModel
class Slow(Small):
    """The small model."""

    def Train(self) -> InstantiableParams:
        p: Any = super().Train()
        p.cls = SlowImages
        return p
