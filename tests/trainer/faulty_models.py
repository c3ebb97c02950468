"""A user's models, whose data ends after five steps while there is a file `faulty`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from mine.translating_models import Letters  # type: ignore[import-not-found]

import model_registry
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.input.images.image_input import ImageClassificationInput
from lingvo_pipe.input.text.sentence_pairs import PairSource, SentencePairs
from lingvo_pipe.layers.convolution import GlobalAveragePoolingLayer
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.models.images.image_classifier import ImageClassifier
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.training.task.single_task_model_params import SingleTaskModelParams

NUM_READABLE = 5


def _read(number: int) -> None:
    if number >= NUM_READABLE and Path("faulty").exists():
        raise ConnectionError("the shelf does not answer\nasked twice")


class ImageShelf:
    """An input of images."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = ImageClassificationInput.Params()
        p.cls = cls
        return p.Set(batch_size=8, pixel_max=16)

    def __init__(self, params: InstantiableParams):
        self.params = params
        self._images = params.Copy().Set(cls=ImageClassificationInput).Instantiate()

    def TrainBatches(self, start_step: int = 0) -> tf.data.Dataset:
        def batches() -> Iterator[NestedMap]:
            images = self._images.TrainBatches(start_step)
            for step, batch in enumerate(images, start_step):
                _read(step)
                yield batch

        spec = self._images.element_spec
        return tf.data.Dataset.from_generator(batches, output_signature=spec)

    def EvalBatches(self) -> Any:
        return self._images.EvalBatches().take(2)


class SentenceShelf:
    """A data set of translated sentences."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = InstantiableParams(cls)
        p.Define("files", None, "Params of the data set's files.")
        return p

    def __init__(self, params: InstantiableParams):
        self._files = params.files

    def Open(self, data_dir: str | None) -> PairSource:
        return _Sentences(self._files.Instantiate().Open(data_dir))


class _Sentences:
    def __init__(self, source: Any):
        self._source = source
        self._num_read = -1  # All are read once before training.

    num_sentences = property(lambda self: self._source.num_sentences)

    def Fetch(self, numbers: np.ndarray) -> SentencePairs:
        _read(self._num_read)
        self._num_read += 1
        return self._source.Fetch(numbers)

    def Where(self, number: int) -> str:
        return self._source.Where(number)


@model_registry.RegisterSingleTaskModel
class Images(SingleTaskModelParams):
    """A small model of images."""

    def Train(self) -> InstantiableParams:
        return ImageShelf.Params()

    def Test(self) -> InstantiableParams:
        return self.Train().Set(split="test")

    def Task(self) -> InstantiableParams:
        p = ImageClassifier.Params()
        cells = [
            GlobalAveragePoolingLayer.Params(),
            FCLayer.Params().Set(input_dim=1, output_dim=10),
        ]
        p.pipeline.Set(cell_tpl=cells, splits=2, num_micro_batches=2)
        p.train.Set(learning_rate=0.01)
        return p


@model_registry.RegisterSingleTaskModel
class Sentences(Letters):
    """A small model of text, whose sentences are read a file at a time."""

    def Train(self) -> InstantiableParams:
        p = super().Train()
        p.data = [SentenceShelf.Params().Set(files=files) for files in p.data[:1]]
        return p
