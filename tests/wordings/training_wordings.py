"""The texts of errors about training, inputs and decoding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tensorflow as tf

from lingvo_pipe.input.image_input import ImageClassificationInput
from lingvo_pipe.input.text.text_file_pairs import ParallelFiles
from lingvo_pipe.input.text.vocabulary import open_vocabulary
from lingvo_pipe.models.decoding.beam_search import beam_search
from lingvo_pipe.training.base_task import BaseTask
from lingvo_pipe.training.best_evaluation import BestEvaluation
from lingvo_pipe.training.changed_params import check_changes
from lingvo_pipe.training.checkpoints import Checkpointer
from lingvo_pipe.training.keras_optimizer import (
    OptimizerParams,
    ScheduleParams,
    optimizer_classes,
)
from lingvo_pipe.training.learner import Learner
from lingvo_pipe.training.loop_params import check_loop_params
from lingvo_pipe.training.run_directory import RunDirectory
from tests.wordings.wording import Wording


def _learner(**values: Any) -> None:
    p = BaseTask.Params().train.Set(learning_rate=0.1).Set(**values)
    Learner(p, variables={})


def _look_for_best(metric: str) -> None:
    p = BaseTask.Params().eval.Set(best_metric=metric)
    BestEvaluation(p).check_metrics(["loss", "accuracy"])


def _restore_another(folder: Path) -> None:
    def variables(last: str, num_classes: int) -> dict[str, tf.Variable]:
        shapes = {"task/fc/w": [3, num_classes], last: [num_classes]}
        return {name: tf.Variable(tf.zeros(shape)) for name, shape in shapes.items()}

    Checkpointer(folder, variables("task/fc/bias", 4)).save(7)
    Checkpointer(folder, variables("task/fc/b", 5)).restore()


def _use_anothers_logdir(folder: Path) -> None:
    RunDirectory(folder / "run", "lm.words.Words").write_params("name : 'x'\n")
    RunDirectory(folder / "run", "image.digits.Digits")


def _open_vocabulary(folder: Path, name: str) -> None:
    (folder / "de-en.vocab").write_text("no vocabulary")
    open_vocabulary(name, str(folder), 8000)


def _open_files(folder: Path) -> None:
    (folder / "train.de").write_text("eins\nzwei\n")
    (folder / "train.en").write_text("one\n")
    p = ParallelFiles.Params().Set(source_language="de", target_language="en")
    p.Set(source_file="train.de", target_file="train.en")
    p.Instantiate().Open(str(folder))


def _beam_search(**values: Any) -> None:
    beam_search(
        lambda ids, states, number: (ids, states),
        lambda states, rows: states,
        [],
        first_ids=tf.zeros([1], tf.int32),
        max_lengths=tf.ones([1], tf.int32),
        max_length=1,
        eos_id=1,
        **values,
    )


WORDINGS = [
    # ---- Training.
    Wording(
        "no number of steps",
        lambda _: check_loop_params(BaseTask.Params()),
        ValueError,
        "task.train.max_steps",
        "Numbers of steps and checkpoints must be integers of at least 1; "
        "task.train.max_steps is None. Set them in the model's Task or by "
        "--model_params_override.",
    ),
    Wording(
        "no learning rate",
        lambda _: _learner(learning_rate=None),
        ValueError,
        "task.train.learning_rate",
        "learning_rate must be positive; got None. Set task.train.learning_rate.",
    ),
    Wording(
        "unknown optimizer",
        lambda _: _learner(optimizer=OptimizerParams("Adafacter")),
        ValueError,
        "'Adafacter'",
        "There is no 'Adafacter'. Did you mean 'Adafactor'? "
        f"Choose one of {sorted(optimizer_classes())}.",
    ),
    Wording(
        "unknown argument of a schedule",
        lambda _: _learner(lr_schedule=ScheduleParams("LinearWarmup", steps=400)),
        ValueError,
        "['steps']",
        "LinearWarmup does not take ['steps'] as arguments. It takes ['schedule', "
        "'warmup_steps'].",
    ),
    Wording(
        "wrong argument of a schedule",
        lambda _: _learner(lr_schedule=ScheduleParams("LinearWarmup", warmup_steps=0)),
        ValueError,
        "warmup_steps",
        "LinearWarmup must be given arguments that it accepts; got {'warmup_steps': "
        "0}: warmup_steps must be positive; got 0. Leave out LinearWarmup for a "
        "schedule without.",
    ),
    Wording(
        "clipped both ways",
        lambda _: _learner(
            clip_gradient_norm_to_value=1.0, clip_gradient_single_norm_to_value=1.0
        ),
        ValueError,
        "clip_gradient_single_norm_to_value",
        "Gradients are clipped by one norm; got clip_gradient_norm_to_value and "
        "clip_gradient_single_norm_to_value. Set one of them to None.",
    ),
    Wording(
        "unknown metric of the best evaluation",
        lambda _: _look_for_best("-los"),
        ValueError,
        "task.eval.best_metric",
        "task.eval.best_metric must be a metric of evaluations; there is no 'los'. Did "
        "you mean 'loss'? There are accuracy, loss.",
    ),
    # ---- Runs that go on.
    Wording(
        "changed params",
        lambda _: check_changes(
            "task.train.learning_rate : 0.1\ntask.pipeline.splits : 1\n",
            "task.train.learning_rate : 0.2\ntask.pipeline.splits : 2\n",
            allowed=[],
        ),
        ValueError,
        "task.train.learning_rate",
        "A run must go on with the params that it was begun with; these have changed:\n"
        "  task.train.learning_rate : 0.1 -> 0.2\n"
        "Set them back, use another --logdir, or accept the change by "
        "--allow_params_change=task.train.learning_rate.",
    ),
    Wording(
        "checkpoint of another model",
        _restore_another,
        ValueError,
        "{folder}/ckpt-00000007",
        "checkpoint must hold exactly the variables of the model; got "
        "{folder}/ckpt-00000007 with\n"
        "  missing (1):\n"
        "    task/fc/b, float32 [5]. Did you mean 'task/fc/bias'?\n"
        "  unexpected (1):\n"
        "    task/fc/bias, float32 [4]\n"
        "  mismatched (1):\n"
        "    task/fc/w, saved as float32 [3, 4], here float32 [3, 5]\n"
        "Restore it with the params it was saved with, those in params.txt, or use "
        "another --logdir.",
    ),
    Wording(
        "logdir of another model",
        _use_anothers_logdir,
        ValueError,
        "{folder}/run",
        "logdir must hold runs of image.digits.Digits; got {folder}/run, which holds "
        "one of lm.words.Words. Choose another --logdir, or give "
        "--model=lm.words.Words.",
    ),
    # ---- Inputs.
    Wording(
        "params of an input left out",
        lambda _: ImageClassificationInput.Params().Set(split="").Instantiate(),
        ValueError,
        "batch_size",
        "split must be a name; got ''; batch_size must be a positive int; got None. "
        "Set them in the params of ImageClassificationInput.",
    ),
    Wording(
        "unknown data set",
        lambda _: (
            ImageClassificationInput.Params()
            .Set(dataset="cldr_sentence", batch_size=8)
            .Instantiate()
        ),
        ValueError,
        "'cldr_sentence'",
        "dataset must be a name of TensorFlow Datasets; got 'cldr_sentence'. Did you "
        "mean 'cldr_sentences'?",
    ),
    Wording(
        "missing vocabulary",
        lambda folder: _open_vocabulary(folder, "de_en.vocab"),
        ValueError,
        "vocab_file",
        "vocab_file must be there to be read; got 'de_en.vocab', and there is no file "
        "{folder}/de_en.vocab. Did you mean 'de-en.vocab'? Relative names begin at "
        "data_dir, which is '{folder}'; --data_dir sets it. lingvo_pipe_train_vocab "
        "makes one, or in the repository tools/bazel run //tools:train_vocab.",
    ),
    Wording(
        "no vocabulary",
        lambda folder: _open_vocabulary(folder, "de-en.vocab"),
        ValueError,
        "{folder}/de-en.vocab",
        "A vocabulary must be a file of SentencePiece; {folder}/de-en.vocab is none. "
        "lingvo_pipe_train_vocab makes one, or in the repository tools/bazel run "
        "//tools:train_vocab.",
    ),
    Wording(
        "files of different lengths",
        _open_files,
        ValueError,
        "{folder}/train.de",
        "Two files of translations must have the same number of lines; "
        "{folder}/train.de has 2 and {folder}/train.en 1, so line 2 of the longer has "
        "no other beside it. Find where they part, there or before, and mend it.",
    ),
    # ---- Decoding.
    Wording(
        "more hypotheses than the beam is wide",
        lambda _: _beam_search(width=2, num_hypotheses=3),
        ValueError,
        "num_hypotheses",
        "num_hypotheses must be an integer from 1 to the beam's width, here 2; got 3. "
        "Return fewer, or widen the beam.",
    ),
    Wording(
        "a negative penalty",
        lambda _: _beam_search(width=2, length_penalty=-1.0),
        ValueError,
        "length_penalty",
        "length_penalty, GNMT's α, must be at least 0 and finite; got -1.0. 0 scores "
        "by the probability alone; usual are 0.6 to 1.",
    ),
]
