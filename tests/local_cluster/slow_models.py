"""Small models whose steps take longer while there is a file `slow`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf
from mine.small_model import Small  # type: ignore[import-not-found]
from mine.translating_models import Letters  # type: ignore[import-not-found]

import model_registry
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.input.images.image_input import ImageClassificationInput
from lingvo_pipe.input.text.translation_input import TranslationInput
from lingvo_pipe.nested_map import NestedMap

_SECONDS = 0.1


def _slowly(batches: tf.data.Dataset) -> tf.data.Dataset:
    def read() -> Iterator[NestedMap]:
        for batch in batches:
            time.sleep(_SECONDS * Path("slow").exists())
            yield batch

    return tf.data.Dataset.from_generator(read, output_signature=batches.element_spec)


class SlowImages(ImageClassificationInput):
    """Images, read slowly."""

    def TrainBatches(self, start_step: int = 0, place: str = "") -> tf.data.Dataset:
        return _slowly(super().TrainBatches(start_step, place))


class SlowTranslations(TranslationInput):
    """Sentences, read slowly."""

    def TrainBatches(self, start_step: int = 0, place: str = "") -> tf.data.Dataset:
        return _slowly(super().TrainBatches(start_step, place))


@model_registry.RegisterSingleTaskModel
class Images(Small):
    """The small model of images."""

    def Train(self) -> InstantiableParams:
        p: Any = super().Train()
        p.cls = SlowImages
        return p


@model_registry.RegisterSingleTaskModel
class Text(Letters):
    """The model that translates letters."""

    def Train(self) -> InstantiableParams:
        p: Any = super().Train()
        p.cls = SlowTranslations
        return p
