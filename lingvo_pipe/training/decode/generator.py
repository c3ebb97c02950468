"""Generation: texts that a language model continues, B at a time."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from lingvo_pipe.core.errors import UserValueError, raise_problems
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.training.decode.continuous_batch import ContinuousBatch, text_rows
from lingvo_pipe.training.decode.decoder import listed_texts
from lingvo_pipe.training.task.base_task import BaseTask
from lingvo_pipe.training.task.protocols import PromptInput, Sampling

# What a setting must be: a condition on numbers and tensors, and its words.
_RULES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "max_tokens": (lambda x: x >= 1, "an integer of at least 1"),
    "temperature": (lambda x: (x >= 0) & (x < np.inf), "a finite number of at least 0"),
    "top_k": (lambda x: x >= 0, "a number of tokens, or 0 for all"),
    "top_p": (lambda x: (x > 0) & (x <= 1), "a probability above 0, and at most 1"),
}
# The dtypes of a function's arguments, in the order of `Sampling`.
DTYPES = {
    "max_tokens": tf.int32,
    "temperature": tf.float32,
    "top_k": tf.int32,
    "top_p": tf.float32,
    "seed": tf.int64,
}
_SAMPLING = Sampling(*(tf.TensorSpec([], dtype) for dtype in DTYPES.values()))
DEFAULT_SAMPLING = Sampling(max_tokens=100)
_OF_DRAWS = ("top_k", "top_p", "seed")  # Without effect if nothing is drawn.


class TextGenerator:
    """A writer of texts, with the weights of a GeneratingTask.

    Raises:
        ValueError: if the task is not a GeneratingTask.
    """

    def __init__(self, task: BaseTask, data: PromptInput, batch_size: int) -> None:
        self._data = data
        self._batch = ContinuousBatch(task, batch_size, data.vocabulary, _SAMPLING)

    def __call__(self, prompts: Sequence[str], sampling: Sampling) -> list[str]:
        """Returns each prompt with what follows it. The prompt "" begins a document.

        A prompt comes back as its tokens spell it. A text depends only on its prompt,
        its number among the prompts, and the settings.

        Raises:
            TypeError: if `prompts` are not texts.
            ValueError: if a setting is out of its range or has no effect, or a prompt
                cannot be UTF-8.
            FloatingPointError: if a score is not finite.
        """
        prompts = listed_texts(prompts, "prompts")
        check_sampling(sampling)
        if not prompts:
            return []
        settings = Sampling(*map(tf.constant, sampling, DTYPES.values()))
        tokens = self._data.PromptBatch(tf.constant(prompts))
        ids = self._batch(tokens, settings)
        texts = self._data.vocabulary.Detokenize(tf.constant(ids[:, 1:]))
        return [text.decode(errors="replace") for text in texts.numpy()]


def check_sampling(sampling: Sampling, prefix: str = "") -> None:
    """Raises ValueError if a setting is out of its range, or has no effect.

    The error names it after `prefix`.
    """
    problems = []
    for name, dtype in DTYPES.items():
        value = getattr(sampling, name)
        is_valid, expected = _RULES.get(name, (lambda x: True, "an integer"))
        kinds = (int, np.integer) if dtype.is_integer else (int, float, np.number)
        is_number = isinstance(value, kinds) and not isinstance(value, bool)
        is_right = is_number and dtype.min <= value <= dtype.max and is_valid(value)
        if is_right and name in _OF_DRAWS and sampling.temperature == 0:
            default = getattr(DEFAULT_SAMPLING, name)
            is_right = value == default
            expected = f"{default}, since {prefix}temperature is 0 and draws nothing"
        if not is_right:
            path = f"{prefix}{name}"
            problems.append(UserValueError(path=path, expected=expected, got=value))
    raise_problems(problems)


def generate_function(task: Any, data: PromptInput) -> Any:
    """Returns a tf.function of `prompts`, string `[B]`, and the settings.

    The function returns `texts`, string `[B]`: the prompts, and what follows them. It
    does not use the stages' devices.
    """

    def run(prompts: tf.Tensor, **settings: tf.Tensor) -> dict[str, tf.Tensor]:
        vocabulary, sampling = data.vocabulary, Sampling(**settings)
        with tf.device("/CPU:0"):
            for name, (is_valid, expected) in _RULES.items():
                message = f"{name}: expected {expected}"
                tf.debugging.Assert(is_valid(settings[name]), [message, settings[name]])
            tokens = data.PromptBatch(prompts)
            rows = text_rows(tokens, sampling.max_tokens, vocabulary.eos_id)
        with ForwardContext(do_eval=True, vocabulary_size=vocabulary.size):
            num_rows, num_tokens = tf.unstack(tf.shape(rows.ids))
            states = task.TextStates(task.theta, num_rows, num_tokens, on_stages=False)
            arguments = rows, states, sampling, vocabulary.eos_id, num_tokens
            rows, _ = task.ContinueTexts(task.theta, *arguments, on_stages=False)
        with tf.device("/CPU:0"):
            message = "score: expected finite ones. Check the checkpoint's weights."
            tf.debugging.assert_positive(rows.lengths, message)
            return {"texts": vocabulary.Detokenize(rows.ids[:, 1:])}

    settings = {k: tf.TensorSpec([], v, k) for k, v in DTYPES.items()}
    return tf.function(run, autograph=False).get_concrete_function(
        prompts=tf.TensorSpec([None], tf.string, "prompts"), **settings
    )
