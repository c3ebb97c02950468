"""The trainer: flags and wiring.

    trainer --model=image.digits.AmoebaNetDigits --logdir=/tmp/digits
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from absl import app, flags, logging

import model_registry
from lingvo_pipe.hyperparams import Params
from lingvo_pipe.pipeline.devices import initialize_devices, parse_devices
from lingvo_pipe.training.inspect_model import describe
from lingvo_pipe.training.run_directory import RunDirectory
from lingvo_pipe.training.training_loop import train

FLAGS = flags.FLAGS

flags.DEFINE_string("model", None, "Name of a registered model; see --list_models.")
flags.DEFINE_string("logdir", None, "Directory of the run; resumed if it has begun.")
flags.DEFINE_enum(
    "mode",
    "train",
    ["train", "inspect_model"],
    "train: train and evaluate. inspect_model: print layers, shapes and stages.",
)
flags.DEFINE_integer(
    "max_steps", None, "Number of steps to train for; the model's own by default."
)
flags.DEFINE_string(
    "devices",
    None,
    "A number of devices, or their names such as cpu:0,cpu:1 or gpu:0,gpu:1; one stage "
    "each. By default as many as the model has stages.",
)
flags.DEFINE_string(
    "model_params_override",
    "",
    "Params to change, such as 'task.train.learning_rate : 0.1; input.batch_size : 32'.",
)
flags.DEFINE_list(
    "model_imports", [], "Packages of your own to import, for the models they register."
)
flags.DEFINE_bool("list_models", False, "Print the names of all models.")


def run() -> None:
    """Entry point of the console script."""
    # `bazel run` starts programs elsewhere, and says where the user is.
    os.chdir(os.environ.get("BUILD_WORKING_DIRECTORY", "."))
    sys.path.insert(0, os.getcwd())
    app.run(main)


def main(argv: Sequence[str]) -> None:
    """Does what the flags say; any fault of the user's is one line on standard error."""
    logging.set_verbosity(logging.WARNING)
    with _faults_as_lines():
        if argv[1:]:
            raise ValueError(f"There are flags only, with --; got {list(argv[1:])}.")
        model_registry.ImportModels(FLAGS.model_imports)
        if FLAGS.list_models:
            model_registry.ImportAll()
            print("\n".join(model_registry.ListModels()))
        elif FLAGS.mode == "inspect_model":
            model = _model_params("Train")
            _place(model)
            print(describe(model.task, model.input.Instantiate()))
        else:
            _train()


def _train() -> None:
    if not FLAGS.logdir:
        raise ValueError("Training needs a directory: give --logdir=PATH.")
    model = _model_params("Train")
    test_input = _model_params("Test").input.Instantiate()
    train_input = model.input.Instantiate()
    _place(model)
    directory = RunDirectory(FLAGS.logdir, FLAGS.model)
    task = model.task.Instantiate()
    directory.write_params(model.ToText())
    train(task, train_input, test_input, directory)


def _model_params(dataset: str) -> Params:
    """The model's params with the overrides of the flags."""
    if not FLAGS.model:
        raise ValueError("Which model? Give --model=NAME; --list_models prints names.")
    model = model_registry.GetParams(FLAGS.model, dataset)
    model.FromText(FLAGS.model_params_override, separator=";")
    if FLAGS.max_steps is not None:
        model.task.train.max_steps = FLAGS.max_steps
    return model


def _place(model: Params) -> None:
    """Makes the devices ready and gives one to each stage."""
    pipeline = model.task.pipeline
    num_stages = (
        pipeline.splits if isinstance(pipeline.splits, int) else len(pipeline.splits)
    )
    if FLAGS.devices is None:
        pipeline.devices = initialize_devices(num_stages)
        return
    pipeline.devices = initialize_devices(parse_devices(FLAGS.devices))
    if isinstance(pipeline.splits, int):
        pipeline.splits = len(pipeline.devices)


@contextlib.contextmanager
def _faults_as_lines() -> Iterator[None]:
    try:
        yield
    except (ValueError, LookupError, AttributeError, FloatingPointError) as error:
        message = error.args[0] if error.args else str(error)
        print(f"error: {message}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    run()
