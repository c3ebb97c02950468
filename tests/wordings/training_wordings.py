"""The texts of errors about training, inputs and decoding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tensorflow as tf

from lingvo_pipe.input.images.image_input import ImageClassificationInput
from lingvo_pipe.input.text.text_file_pairs import ParallelFiles
from lingvo_pipe.input.text.vocabulary import open_vocabulary
from lingvo_pipe.layers.convolution import Conv2DLayer
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.models.decoding.beam_search import beam_search
from lingvo_pipe.models.images.image_classifier import ImageClassifier
from lingvo_pipe.training.checkpoint.checkpointer import Checkpointer
from lingvo_pipe.training.optim.keras_optimizer import (
    OptimizerParams,
    ScheduleParams,
    optimizer_classes,
)
from lingvo_pipe.training.optim.learner import Learner
from lingvo_pipe.training.run.best_evaluation import BestEvaluation
from lingvo_pipe.training.run.changed_params import check_changes
from lingvo_pipe.training.run.resume_record import ResumeRecord
from lingvo_pipe.training.run.run_directory import RunDirectory
from lingvo_pipe.training.stability.skipped_batches import SkippedBatches
from lingvo_pipe.training.task.base_task import BaseTask
from lingvo_pipe.training.task.task_params import check_loop_params
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


def _follow_link(folder: Path) -> None:
    (folder / "run").mkdir()
    (folder / "run" / "lock").symlink_to(folder / "victim")
    RunDirectory(folder / "run", "lm.words.Words")


def _lose_metrics(folder: Path) -> None:
    run = RunDirectory(folder / "run", "lm.words.Words")
    run.write_params("name : 'x'\n")
    record = ResumeRecord(run, SkippedBatches(run.skipped_batches_path))
    line = '{"step": 1, "split": "train", "loss": 0.5}\n'
    (run.path / "metrics.jsonl").write_text(2 * line)
    record.write()
    (run.path / "metrics.jsonl").write_text(line)
    record.check(1)


def _open_vocabulary(folder: Path, name: str) -> None:
    (folder / "de-en.vocab").write_text("no vocabulary")
    open_vocabulary(name, str(folder), 8000)


def _open_files(folder: Path) -> None:
    (folder / "train.de").write_text("eins\nzwei\n")
    (folder / "train.en").write_text("one\n")
    p = ParallelFiles.Params().Set(source_language="de", target_language="en")
    p.Set(source_file="train.de", target_file="train.en")
    p.Instantiate().Open(str(folder))


def _images(folder: Path, **values: Any) -> Any:
    p = ImageClassificationInput.Params().Set(batch_size=8, data_dir=str(folder))
    return p.Set(**values).Instantiate()


def _fit_images(folder: Path, channels: int, classes: int) -> None:
    p, conv, fc = (x.Params() for x in (ImageClassifier, Conv2DLayer, FCLayer))
    conv.Set(filter_shape=[3, 3, channels, 8])
    p.pipeline.cell_tpl = [conv, fc.Set(input_dim=8, output_dim=classes)]
    p.cls.CheckInput(p, _images(folder))


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
        "task.train.max_steps: expected an integer of at least 1, got None. Set these "
        "in the model's Task or by --model_params_override.",
    ),
    Wording(
        "no learning rate",
        lambda _: _learner(learning_rate=None),
        ValueError,
        "task.train.learning_rate",
        "task.train.learning_rate: expected a positive number, got None.",
    ),
    Wording(
        "unknown optimizer",
        lambda _: _learner(optimizer=OptimizerParams("Adafacter")),
        ValueError,
        "'Adafacter'",
        "task.train.optimizer: there is no 'Adafacter'. Did you mean 'Adafactor'? "
        f"Choose one of {sorted(optimizer_classes())}.",
    ),
    Wording(
        "unknown argument of a schedule",
        lambda _: _learner(lr_schedule=ScheduleParams("LinearWarmup", steps=400)),
        ValueError,
        "['steps']",
        "task.train.lr_schedule: LinearWarmup does not take ['steps'] as arguments. It "
        "takes ['schedule', 'warmup_steps'].",
    ),
    Wording(
        "wrong argument of a schedule",
        lambda _: _learner(lr_schedule=ScheduleParams("LinearWarmup", warmup_steps=0)),
        ValueError,
        "warmup_steps",
        "task.train.lr_schedule: LinearWarmup does not accept {'warmup_steps': 0}: "
        "warmup_steps: expected a positive number, got 0. Leave out LinearWarmup "
        "instead.",
    ),
    Wording(
        "clipped both ways",
        lambda _: _learner(
            clip_gradient_norm_to_value=1.0, clip_gradient_single_norm_to_value=1.0
        ),
        ValueError,
        "clip_gradient_single_norm_to_value",
        "task.train: expected at most one of clip_gradient_norm_to_value and "
        "clip_gradient_single_norm_to_value. Set one of them to 0.",
    ),
    Wording(
        "unknown metric of the best evaluation",
        lambda _: _look_for_best("-los"),
        ValueError,
        "task.eval.best_metric",
        "task.eval.best_metric: expected a metric of evaluations, got 'los'. Did you "
        "mean 'loss'? There are accuracy, loss.",
    ),
    # ---- Resumed runs.
    Wording(
        "changed params",
        lambda _: check_changes(
            "task.train.learning_rate : 0.1\ntask.pipeline.splits : 1\n",
            "task.train.learning_rate : 0.2\ntask.pipeline.splits : 2\n",
            allowed=[],
        ),
        ValueError,
        "task.train.learning_rate",
        "Cannot resume: these params differ from the original run:\n"
        "  task.train.learning_rate : 0.1 -> 0.2\n"
        "Set them back, use another --logdir, or accept the change by "
        "--allow_params_change=task.train.learning_rate.",
    ),
    Wording(
        "checkpoint of another model",
        _restore_another,
        ValueError,
        "{folder}/ckpt-00000007",
        "{folder}/ckpt-00000007: expected exactly the variables of the model, got\n"
        "  missing (1):\n"
        "    task/fc/b, float32 [5]. Did you mean 'task/fc/bias'?\n"
        "  mismatched (1):\n"
        "    task/fc/w, here float32 [3, 5], in the checkpoint float32 [3, 4]\n"
        "  unexpected (1):\n"
        "    task/fc/bias, float32 [4]\n"
        "Restore it with the params it was saved with, those in params.txt, or use "
        "another --logdir.",
    ),
    Wording(
        "logdir of another model",
        _use_anothers_logdir,
        ValueError,
        "{folder}/run",
        "--logdir: expected a run of image.digits.Digits, got {folder}/run, one of "
        "lm.words.Words. Choose another --logdir, or pass --model=lm.words.Words.",
    ),
    # ---- Inputs.
    Wording(
        "params of an input left out",
        lambda _: ImageClassificationInput.Params().Set(split="").Instantiate(),
        ValueError,
        "batch_size",
        "split: expected a name, got ''; batch_size: expected a positive integer, got "
        "None. Set them in the params of ImageClassificationInput.",
    ),
    Wording(
        "unknown data set",
        lambda folder: _images(folder, dataset="cldr_sentence"),
        ValueError,
        "'cldr_sentence'",
        "dataset: expected a name in TensorFlow Datasets, got 'cldr_sentence'. Did you "
        "mean 'cldr_sentences'? Or give a folder of your own images in {folder}, with "
        "train/CLASS/IMAGE.jpg and test/CLASS/IMAGE.jpg; 'cldr_sentence' is none.",
    ),
    Wording(
        "images of several sizes",
        lambda folder: _images(folder, dataset="image_folder:photos"),
        ValueError,
        "(None, None, 3)",
        "train_transforms and eval_transforms: expected the same fixed (height, "
        "width, channels), got (None, None, 3) and (None, None, 3). Set "
        "input.image_size to the size that the model takes, or end both with a Resize "
        "to it.",
    ),
    Wording(
        "gray images for a model of color images",
        lambda folder: _fit_images(folder, channels=3, classes=10),
        ValueError,
        "input.channels",
        "input.channels: expected 3, the channels that "
        "task.pipeline.cell_tpl[0].filter_shape takes, got 1. Set input.channels to 3 "
        "to convert the images, or change the model's first layer.",
    ),
    Wording(
        "more classes than outputs",
        lambda folder: _fit_images(folder, channels=1, classes=9),
        ValueError,
        "output_dim",
        "task.pipeline.cell_tpl[1].output_dim: expected an output for each of the 10 "
        "classes of the input, got 9. The last class is '9', of label 9. Give the "
        "model more outputs, or set input.labels to fewer classes.",
    ),
    Wording(
        "missing vocabulary",
        lambda folder: _open_vocabulary(folder, "de_en.vocab"),
        ValueError,
        "vocab_file",
        "vocab_file: expected an existing file, got 'de_en.vocab'; there is no file "
        "{folder}/de_en.vocab. Did you mean 'de-en.vocab'? Relative names begin at "
        "data_dir, which is '{folder}'; --data_dir sets it. lingvo_pipe_train_vocab "
        "makes one, or in the repository tools/bazel run //tools:train_vocab.",
    ),
    Wording(
        "no vocabulary",
        lambda folder: _open_vocabulary(folder, "de-en.vocab"),
        ValueError,
        "{folder}/de-en.vocab",
        "vocab_file: expected a SentencePiece file, got {folder}/de-en.vocab. "
        "lingvo_pipe_train_vocab makes one, or in the repository tools/bazel run "
        "//tools:train_vocab.",
    ),
    Wording(
        "files of different lengths",
        _open_files,
        ValueError,
        "{folder}/train.de",
        "source_file, target_file: expected files with the same number of lines, got "
        "{folder}/train.de with 2 and {folder}/train.en with 1. Up to line 2 of the "
        "longer file, a line is missing or superfluous; correct it.",
    ),
    # ---- Files of a run.
    Wording(
        "a run on remote storage",
        lambda _: RunDirectory("gs://runs/a", "lm.words.Words"),
        ValueError,
        "--logdir",
        "--logdir: expected a folder of this machine, got 'gs://runs/a'. Mount the "
        "remote storage, or copy from and to it, since locks and atomic renames need a "
        "file system.",
    ),
    Wording(
        "a link in a run's directory",
        _follow_link,
        ValueError,
        "{folder}/run/lock",
        "--logdir: expected only files of this user, got {folder}/run/lock, which is a "
        "symbolic link. Choose another --logdir, or accept it by "
        "--allow_foreign_logdir, or allow_foreign=True in Python, if you trust whoever "
        "put it there.",
    ),
    Wording(
        "lost metrics",
        _lose_metrics,
        ValueError,
        "{folder}/run/metrics.jsonl",
        "{folder}/run/metrics.jsonl: expected the 2 lines that it had at the last "
        "checkpoint, got 1. The best evaluation and the patience follow from them. Put "
        "back a copy, or remove {folder}/run/checkpoints/record.json to resume without "
        "it.",
    ),
    # ---- Decoding.
    Wording(
        "more hypotheses than the beam is wide",
        lambda _: _beam_search(width=2, num_hypotheses=3),
        ValueError,
        "num_hypotheses",
        "num_hypotheses: expected an integer from 1 to the beam's width, 2, got 3. "
        "Return fewer, or widen the beam.",
    ),
    Wording(
        "a negative penalty",
        lambda _: _beam_search(width=2, length_penalty=-1.0),
        ValueError,
        "length_penalty",
        "length_penalty: expected a finite number of at least 0, GNMT's α, got -1.0. 0 "
        "scores only by probability; 0.6 to 1 are usual.",
    ),
]
