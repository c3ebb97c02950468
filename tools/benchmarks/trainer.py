"""Measures the trainer's overhead per step: batches, checks, reports, checkpoints.

    python -m tools.benchmarks.trainer --model=image.digits.AmoebaNetDigits

Trains a registered model with the trainer's own loop. Now and then the loop waits for
its next batch, and bare steps of the same model run in the meantime, all on one batch.
README.md describes the comparison.
"""

import tempfile
from collections.abc import Sequence

from absl import app, flags

from lingvo_pipe.core.programs import program
from lingvo_pipe.core.tensorflow_startup import importing_tensorflow

with importing_tensorflow():
    from lingvo_pipe.cli.model_request import ModelRequest
    from lingvo_pipe.pipeline.devices.stage_devices import initialize_devices
    from lingvo_pipe.training.loop.training_loop import train
    from lingvo_pipe.training.run.run_directory import RunDirectory
    from lingvo_pipe.training.step.train_step import TrainStep
    from lingvo_pipe.training.task.local_training import with_local_losses
    from lingvo_pipe.training.task.pipeline_inputs import configure_inputs
    from lingvo_pipe.training.task.placement import place_stages
    from tools.benchmarks.interleaved_steps import InterleavedSteps, check_turns

FLAGS = flags.FLAGS

flags.DEFINE_string(
    "model", "image.digits.AmoebaNetDigits", "Name of a registered model."
)
flags.DEFINE_integer(
    "blocks", 8, "Turns of the trainer's steps and of bare steps.", lower_bound=2
)
flags.DEFINE_integer("steps", 20, "Steps in each turn.", lower_bound=5)
flags.DEFINE_string("model_params_override", "", "Params to change, as in the trainer.")

# No divisor of a turn, so that saves fall on each of its steps.
_SAVE_INTERVAL = 9


def main(argv: Sequence[str]) -> None:
    """Prints the trainer's overhead and the cost of a checkpoint."""
    with program(argv):
        check_turns(FLAGS.blocks, FLAGS.steps, _SAVE_INTERVAL)
        request = ModelRequest(FLAGS.model, override=FLAGS.model_params_override)
        model, test_model = request.params("Train"), request.params("Test")
        placement = place_stages(model.task.pipeline, None)
        model.task.pipeline.devices = initialize_devices(placement.devices)
        model.task.train.max_steps = FLAGS.blocks * FLAGS.steps
        model.task.train.save_interval_steps = _SAVE_INTERVAL
        model.task.eval.interval_steps = None
        train_input = model.input.Instantiate()
        configure_inputs(model.task, train_input)
        task_params = with_local_losses(model.task, train_input)
        bare = TrainStep(task_params.Instantiate())
        bare.Trace(train_input.TrainBatches().element_spec)
        steps = InterleavedSteps(train_input, bare, FLAGS.steps)
        test_input, task = test_model.input.Instantiate(), task_params.Instantiate()
        with tempfile.TemporaryDirectory() as logdir:
            directory = RunDirectory(logdir, FLAGS.model)
            train(task, steps, test_input, directory, model.ToText())
        print(steps.table(_SAVE_INTERVAL))


if __name__ == "__main__":
    app.run(main)
