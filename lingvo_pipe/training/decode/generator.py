"""Generation: K texts that a language model continues, B in a batch."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tqdm

from lingvo_pipe.core.errors import UserValueError, raise_problems
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.training.decode.decoder import check_texts, method_of
from lingvo_pipe.training.task.base_task import BaseTask
from lingvo_pipe.training.task.protocols import (
    GeneratingTask,
    PromptInput,
    Samples,
    Sampling,
)

# (prompts, sampling, end token) -> texts
Generate = Callable[[NestedMap, Sampling, int], Samples]

# What a setting must be: a condition on numbers and tensors, and its words.
_RULES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "max_tokens": (lambda x: x >= 1, "an integer of at least 1"),
    "temperature": (lambda x: (x >= 0) & (x < np.inf), "a finite number of at least 0"),
    "top_k": (lambda x: x >= 0, "a number of tokens, or 0 for all"),
    "top_p": (lambda x: (x > 0) & (x <= 1), "a probability above 0, and at most 1"),
}
# The dtypes of a function's arguments.
DTYPES = {
    "max_tokens": tf.int32,
    "temperature": tf.float32,
    "top_k": tf.int32,
    "top_p": tf.float32,
    "seed": tf.int64,
}
DEFAULT_SAMPLING = Sampling(max_tokens=100)


class TextGenerator:
    """A writer of texts, with the weights of a GeneratingTask.

    Raises:
        ValueError: if the task is not a GeneratingTask.
    """

    def __init__(self, task: BaseTask, data: PromptInput, batch_size: int) -> None:
        self._data, self._batch_size = data, batch_size
        generate = method_of(task, GeneratingTask, "Generate", "a LanguageModelTask")
        self._function = generate_function(generate, data)

    def __call__(self, prompts: Sequence[str], sampling: Sampling) -> list[str]:
        """Returns each prompt with what follows it. "" is the begin of a document.

        A text depends on its prompt, its number among the prompts, and the settings.

        Raises:
            TypeError: if `prompts` is not a list of texts.
            ValueError: if a setting is out of its range.
        """
        check_texts(prompts, "prompts")
        check_sampling(sampling)
        settings = {
            name: tf.constant(getattr(sampling, name), dtype)
            for name, dtype in DTYPES.items()
        }
        texts = [""] * len(prompts)
        # A batch reads its longest prompt, so similar lengths share one.
        order = np.argsort([-len(x) for x in prompts], kind="stable")
        starts = range(0, len(order), self._batch_size)
        for start in tqdm.tqdm(starts, unit=" batches", disable=None, leave=False):
            rows = order[start : start + self._batch_size]
            outputs = self._function(
                prompts=tf.constant([prompts[row] for row in rows]),
                numbers=tf.constant(rows, tf.int32),
                **settings,
            )
            for row, text in zip(rows, outputs["texts"].numpy(), strict=True):
                texts[row] = text.decode(errors="replace")
        return texts


def check_sampling(sampling: Sampling, prefix: str = "") -> None:
    """Raises ValueError if settings are out of their ranges.

    `prefix` is what the error puts before a setting's name.
    """
    problems = []
    for name, dtype in DTYPES.items():
        value = getattr(sampling, name)
        is_valid, expected = _RULES.get(name, (lambda x: True, "an integer"))
        kinds = (int, np.integer) if dtype.is_integer else (int, float, np.number)
        is_number = isinstance(value, kinds) and not isinstance(value, bool)
        if not (is_number and dtype.min <= value <= dtype.max and is_valid(value)):
            path = f"{prefix}{name}"
            problems.append(UserValueError(path=path, expected=expected, got=value))
    raise_problems(problems)


def generate_function(generate: Generate, data: PromptInput) -> Any:
    """Returns a tf.function of `prompts`, string `[B]`, `numbers` and the settings.

    It returns `texts`, string `[B]`: the prompts, and what follows them.
    """

    def run(
        prompts: tf.Tensor, numbers: tf.Tensor, **settings: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        with tf.device("/CPU:0"):
            for name, (is_valid, expected) in _RULES.items():
                message = f"{name}: expected {expected}"
                tf.debugging.Assert(is_valid(settings[name]), [message, settings[name]])
            batch = NestedMap(data.PromptBatch(prompts), numbers=numbers)
        vocabulary = data.vocabulary
        with ForwardContext(do_eval=True):
            samples = generate(batch, Sampling(**settings), vocabulary.eos_id)
        with tf.device("/CPU:0"):
            return {"texts": vocabulary.Detokenize(samples.ids[:, 1:])}

    settings = {k: tf.TensorSpec([], v, k) for k, v in DTYPES.items()}
    return tf.function(run, autograph=False).get_concrete_function(
        prompts=tf.TensorSpec([None], tf.string, "prompts"),
        numbers=tf.TensorSpec([None], tf.int32, "numbers"),
        **settings,
    )
