"""A trained model in a Python program, to use it on your own data.

    model = lp.load("/tmp/tiny")
    model.translate(["zehn Tage"], to="en")

Shapes: K texts or images, images of H x W pixels in C channels, N classes.
"""

import functools
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from absl import logging

import model_registry
from lingvo_pipe.core.error_text import plain_message
from lingvo_pipe.core.errors import (
    UserLookupError,
    UserTypeError,
    UserValueError,
    Words,
)
from lingvo_pipe.hyperparams import Params
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.serving.export import predictions
from lingvo_pipe.training.decode.decoder import check_finite
from lingvo_pipe.training.decode.generator import DEFAULT_SAMPLING, TextGenerator
from lingvo_pipe.training.decode.translator import Translator
from lingvo_pipe.training.eval.run_weights import open_run, weights_in_turn
from lingvo_pipe.training.run.run_classes import known_class_names, read_class_names
from lingvo_pipe.training.run.run_directory import RunDirectory
from lingvo_pipe.training.run.run_params import params_of_run
from lingvo_pipe.training.run.run_vocabulary import COPY, check_vocabulary
from lingvo_pipe.training.task import protocols
from lingvo_pipe.training.task.base_task import BaseTask
from lingvo_pipe.training.task.pipeline_inputs import single_stage
from lingvo_pipe.training.task.protocols import Sampling

_PROBABILITIES = "probabilities"


class Classification(NamedTuple):
    """An image's most likely class, and the probabilities of all classes."""

    label: int
    name: str  # the label's digits if the class has no name that is known
    probabilities: np.ndarray  # float32 [N]


def load(
    logdir: str | Path,
    checkpoint: str | None = None,
    *,
    model: str | type | None = None,
    allow_foreign: bool = False,
) -> "TrainedModel":
    """Loads the trained model of a run, onto the first GPU or else the CPU.

    The run may come from someone else: its files cannot cause an import. No data set is
    needed. The vocabulary is read when texts are first translated or generated.

    Args:
        logdir: directory of the run, which may be in training.
        checkpoint: a name such as `ckpt-00000600`, or `best`. If None, the newest.
        model: the model's class, or its registered name, whose module is imported. If
            None, the run's model must be this library's, or already be imported.
        allow_foreign: whether the run may have links to folders or other users' files.

    Raises:
        LookupError: if the model is not registered.
        ValueError: if there is no such run or checkpoint, or another model was trained.
    """
    path = os.path.expanduser(logdir)
    name = None if model is None else model_registry.GetName(model)
    directory = open_run(path, name, allow_foreign=allow_foreign)
    if name is None and not model_registry.IsKnown(directory.model_name):
        raise UserLookupError(
            path="load(model=...)",
            expected="the run's model, since it is not imported yet",
            got=None,
            hint=f"If you trust its code, pass model={directory.model_name!r}.",
        )
    p = params_of_run(directory, "Test")
    vocabulary = directory.path.absolute() / COPY
    if vocabulary.exists() and "vocab_file" in p.input:
        p.input.vocab_file = str(vocabulary)
    task = single_stage(p.task).Instantiate()
    (step,) = weights_in_turn(task, directory, checkpoint, None, logging.warning)
    return TrainedModel(directory, step, task, p.input)


class TrainedModel:
    """A model with a run's trained weights. `load` returns it.

    Attributes:
        name: the model's registered name.
        step: the training step after which the weights were saved.
    """

    def __init__(
        self, directory: RunDirectory, step: int, task: BaseTask, input_params: Params
    ) -> None:
        self.name, self.step, self.task = directory.model_name, step, task
        self._path, self._input_params = directory.path.absolute(), input_params

    def translate(self, sentences: Sequence[str], to: str | None = None) -> list[str]:
        """Returns the best translation of each sentence, "" for one without words.

        `to` is the target language, such as "en". It may be None if there is only one.

        Raises:
            TypeError: if the model does not translate.
            ValueError: if the language is unknown, or a sentence is too long.
        """
        return self._translator(sentences, to)

    def generate(
        self,
        prompts: Sequence[str],
        max_tokens: int = DEFAULT_SAMPLING.max_tokens,
        *,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
    ) -> list[str]:
        """Returns each prompt with the text by which a language model continues it.

        A text depends on its prompt, its number among the prompts and the settings. The
        prompt "" begins a document. A prompt comes back as the vocabulary's tokens
        spell it: most join spaces, and have ⁇ for unknown characters.

        Args:
            prompts: the beginnings of K texts.
            max_tokens: most tokens that follow a prompt. A text may end earlier.
            temperature: divides the scores before a token is drawn; 0 takes the
                likeliest token, so that `top_k`, `top_p` and `seed` have no effect.
            top_k: draws from this number of likeliest tokens; 0 is all.
            top_p: draws from the likeliest tokens that have this probability together
                (1904.09751, section 3.1).
            seed: the seed of the draws.

        Raises:
            TypeError: if the model is no language model, or the prompts are no texts.
            ValueError: if a setting is out of its range, or has no effect.
            FloatingPointError: if a score is not finite.
        """
        sampling = Sampling(max_tokens, temperature, top_k, top_p, seed)
        return self._generator(prompts, sampling)

    def classify(self, images: Iterable[Any]) -> list[Classification]:
        """Returns the class of each image. An image is a path or an array `[H, W, C]`.

        An array must have the shape of the data set's images, and numbers from 0 to the
        data set's largest pixel (see the param `input.pixel_max`).

        Raises:
            TypeError: if the model does not classify images.
            ValueError: if a path or an array is not an image.
            FloatingPointError: if a probability is not finite.
        """
        data, classify = self._data, self._classifier
        if isinstance(images, (str, Path)) or getattr(images, "ndim", 4) < 4:
            is_path = isinstance(images, (str, Path))
            raise UserTypeError(
                path="images",
                expected="a list of paths or of arrays",
                got=images if is_path else Words("one array"),
                hint=f"Use classify([{images!r}])." if is_path else "Put it in a list.",
            )
        prepared = [_prepared(data, image, i) for i, image in enumerate(images)]
        size = data.params.batch_size
        batches = (prepared[i : i + size] for i in range(0, len(prepared), size))
        rows = [row for batch in batches for row in classify(tf.stack(batch)).numpy()]
        return [_classification(x, self._class_names, i) for i, x in enumerate(rows)]

    @functools.cached_property
    def _data(self) -> Any:
        p = self._input_params
        try:
            data = p.Instantiate()
        except UserLookupError:
            if not read_class_names(self._path):
                raise
            # The folder of the images is absent, and nothing of it is needed.
            data = p.Copy().Set(dataset=f"image_folder:{p.dataset}").Instantiate()
        check_vocabulary(self._path, data)
        return data

    @functools.cached_property
    def _translator(self) -> Translator:
        if not protocols.translates(self.task, self._data):
            raise self._wrong_kind("translate")
        return Translator(self.task, self._data, self._data.params.batch_size)

    @functools.cached_property
    def _generator(self) -> TextGenerator:
        if not protocols.generates(self.task, self._data):
            raise self._wrong_kind("generate")
        return TextGenerator(self.task, self._data, self._data.params.batch_size)

    @functools.cached_property
    def _classifier(self) -> Any:
        """A function from images `[K, H, W, C]` to probabilities `[K, N]`."""
        if not isinstance(self._data, protocols.ImageInput):
            raise self._wrong_kind("classify")
        spec = tf.TensorSpec([None, *self._data.image_shape], tf.float32)

        def classify(images: tf.Tensor) -> tf.Tensor:
            outputs = predictions(self.task, NestedMap(image=images))
            if _PROBABILITIES not in outputs:
                raise UserTypeError(
                    path="classify",
                    expected=f"{_PROBABILITIES} among ServingOutputs of {self.name}",
                    got=list(outputs),
                )
            return outputs[_PROBABILITIES]

        return tf.function(classify, [spec], autograph=False)

    @functools.cached_property
    def _class_names(self) -> list[str]:
        return read_class_names(self._path) or known_class_names(self._data)

    def _wrong_kind(self, method: str) -> UserTypeError:
        hint = "Export it by --job=exporter."
        if isinstance(self._data, protocols.ImageInput):
            hint = "Use classify."
        elif protocols.translates(self.task, self._data):
            hint = "Use translate."
        elif protocols.generates(self.task, self._data):
            hint = "Use generate."
        task, data = type(self.task).__name__, type(self._data).__name__
        return UserTypeError(
            path=method,
            expected=f"a model that can {method}",
            got=Words(f"{self.name}, whose task is {task} and whose input is {data}"),
            hint=hint,
        )


def _classification(
    probabilities: np.ndarray, names: Sequence[str], number: int
) -> Classification:
    if len(names) > probabilities.size:
        raise UserValueError(
            path="input.dataset",
            expected=f"names of at most {probabilities.size} classes, the outputs",
            got=len(names),
            hint="Use the data set that the model was trained on.",
        )
    check_finite(f"images[{number}]", probabilities.max())
    label = int(probabilities.argmax())
    name = names[label] if label < len(names) else str(label)
    return Classification(label, name, probabilities)


def _prepared(data: protocols.ImageInput, image: Any, number: int) -> tf.Tensor:
    is_path = isinstance(image, (str, Path))
    path = f"images[{number}]"
    if is_path and not os.path.isfile(image):
        expected = "the path of a file, or an array"
        raise UserValueError(path=path, expected=expected, got=image)
    try:
        content = tf.io.read_file(str(image)) if is_path else tf.constant(image)
        return data.EvalImage(content)
    except UserValueError as error:
        raise error.within(path) from error
    except (ValueError, tf.errors.OpError) as error:
        content_text = f"the file {image}" if is_path else "an array"
        message = plain_message(getattr(error, "message", str(error)))
        raise UserValueError(
            path=path,
            expected="an image like the data set's",
            got=Words(f"{content_text}: {message}"),
        ) from error
