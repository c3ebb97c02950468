"""Trains a registered model, on one device or pipelined over several.

    trainer --model=image.digits.AmoebaNetDigits --logdir=/tmp/digits

Flags only: what they ask for is done in `jobs`, which imports TensorFlow. That takes
seconds, so whatever is wrong with the flags is told before.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from absl import app, flags, logging

from lingvo_pipe.cluster_flags import check_worker_flags, settle_membership
from lingvo_pipe.errors_as_lines import errors_as_lines, exit_with
from lingvo_pipe.failures.free_memory import return_free_memory
from lingvo_pipe.failures.restarts import ProcessStart
from lingvo_pipe.pipeline.devices.cluster_spec import checked_task
from lingvo_pipe.pipeline.devices.device_names import parse_devices
from lingvo_pipe.pipeline.devices.membership import Membership
from lingvo_pipe.quiet_startup import quiet_startup
from lingvo_pipe.training.counting_allocator import count_cpu_memory
from lingvo_pipe.watch_flags import watch_of

if TYPE_CHECKING:
    from lingvo_pipe.jobs import ModelRequest

FLAGS = flags.FLAGS

flags.DEFINE_string("model", None, "Name of a registered model; see --list_models.")
flags.DEFINE_string("logdir", None, "Directory of the run; resumed if it has begun.")
flags.DEFINE_enum(
    "mode",
    "train",
    ["train", "inspect_model", "inspect_params", "diff_params", "report"],
    "train: train and evaluate. inspect_model: print layers, shapes and stages. "
    "inspect_params: print all params. diff_params: print those that differ from "
    "--other_model's, or from those of the run in --logdir. report: write "
    "LOGDIR/report.html, a page about the run.",
)
flags.DEFINE_string(
    "other_model", None, "Name of the model to compare with, with --mode=diff_params."
)
flags.DEFINE_integer(
    "max_steps",
    None,
    "Number of steps to train for; the model's own by default.",
    lower_bound=1,
)
flags.DEFINE_integer(
    "profile_step",
    None,
    "Number of a step to draw and tabulate: when each device ran what, and when the "
    "schedule's simulation says it should have. At least 3; see LOGDIR/profile.",
    lower_bound=1,
)
flags.DEFINE_list(
    "allow_params_change",
    [],
    "Params that may differ from those that the run in --logdir was begun with, and "
    "all below them: task.train.learning_rate,task.train.optimizer. Where a model "
    "runs, how long, what is reported and what is done when a step goes wrong may "
    "always change; with --job=evaler and the like, all of input and task.train.",
)
flags.DEFINE_string(
    "devices",
    None,
    "A number of devices, or their names such as cpu:0,cpu:1 or gpu:0,gpu:1 or, of "
    "workers, worker:0/gpu:0,worker:1/gpu:0; one stage each, or "
    "task.pipeline.stages_per_device. With --cluster a number is of the cluster's, in "
    "the order of its tasks. This replaces a number in task.pipeline.splits, "
    "which the first line then says; a list there, and task.pipeline.devices, must be "
    "as many. By default task.pipeline.devices, or as many as the model has stages.",
)
flags.DEFINE_enum(
    "job",
    "trainer",
    ["trainer", "evaler", "decoder", "exporter", "worker"],
    "trainer: do what --mode says. evaler: evaluate what was trained in --logdir; see "
    "LOGDIR/evaler. decoder: translate with it; see LOGDIR/decoder. exporter: make a "
    "SavedModel of it; see LOGDIR/export. worker: lend this machine's devices to the "
    "others.",
)
flags.DEFINE_string(
    "split",
    "Test",
    "The data set of --job=evaler and the like: Train, Test, Dev, ...",
)
flags.DEFINE_string(
    "checkpoint",
    None,
    "The checkpoint of --job=evaler and the like, such as ckpt-00000600, or best: "
    "that of the best evaluation, see task.eval.best_metric. The newest by default.",
)
flags.DEFINE_float(
    "follow_seconds",
    None,
    "With --job=evaler and the like: go on with each new checkpoint of a running "
    "trainer, until its last step, or until none has come for so many seconds.",
    lower_bound=0,
)
flags.DEFINE_string(
    "cluster",
    None,
    "Where the workers are, the same for all tasks: worker=host1:port1,host2:port2, "
    "and before that trainer=host0:port0@ if the trainer has an address too. Or who "
    "says so, and what this process does: tf_config, slurm, kubernetes or "
    "kubernetes:LABEL=VALUE. By default TF_CONFIG, if that is set.",
)
flags.DEFINE_alias("cluster_spec", "cluster")
flags.DEFINE_integer("task", None, "Which worker this is, with --job=worker: 0, 1, ...")
flags.DEFINE_bool(
    "listen_on_all_addresses",
    False,
    "With --cluster: answer at all addresses of this machine, and not only at its own "
    "in --cluster. Whoever reaches the port may run anything.",
)
flags.DEFINE_float(
    "worker_timeout_seconds",
    30.0,
    "With --cluster: a worker that does not answer for so long is lost. The job then "
    "waits for all workers, and goes on from the last checkpoint.",
    lower_bound=1.0,
)
flags.DEFINE_float(
    "wait_for_workers_seconds",
    600.0,
    "With --cluster: how long to wait for workers that are not up, or are lost.",
    lower_bound=0.0,
)
flags.DEFINE_string(
    "model_params_override",
    "",
    "Params to change: 'task.train.learning_rate : 0.1; input.batch_size : 32'.",
)
flags.DEFINE_string(
    "data_dir", None, "Where data sets are; as input.data_dir, of all inputs."
)
flags.DEFINE_list(
    "model_imports", [], "Packages of your own to import, for the models they register."
)
flags.DEFINE_bool("list_models", False, "Print the names of all models.")
flags.DEFINE_bool("traceback", False, "Show the whole traceback of an error.")


# Flags of one job alone.
_TRAINING_FLAGS = (
    "mode",
    "max_steps",
    "profile_step",
    "other_model",
)
_USING_FLAGS = ("split", "checkpoint", "follow_seconds")
_REPORT_FLAGS = ("job", "mode", "logdir", "model", "traceback")
_USING_JOBS = ("evaler", "decoder", "exporter")

# Noted before anything is changed.
_START = ProcessStart.now()


def run() -> None:
    """Entry point of the console script."""
    # `bazel run` starts programs elsewhere, and says where the user is.
    os.chdir(os.environ.get("BUILD_WORKING_DIRECTORY", "."))
    # Run as a file, Python would find our folders as top-level packages.
    here = os.path.dirname(os.path.realpath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.realpath(path) != here]
    sys.path.append(os.getcwd())  # For models of the user's own.
    # A line is in a file as soon as it is said, and in order with standard error's.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    if __name__ != "__main__":
        sys.argv[0] = __name__  # Whose flags --help shows.
    app.run(main, flags_parser=_parse)


def main(argv: Sequence[str]) -> None:
    """Does what the flags say; an error is told in a line on standard error."""
    logging.set_verbosity(logging.WARNING)
    with errors_as_lines(_USING_JOBS):
        member = settle_membership()
        _check_flags(argv, member)
        if member.source:
            print(member.note())
        if FLAGS.job == "worker" and member.cluster is not None:
            task = checked_task(FLAGS.task, member.cluster.workers)
            with quiet_startup():
                from lingvo_pipe.pipeline.devices.worker import serve
            return_free_memory()
            patience = FLAGS.wait_for_workers_seconds
            serve(member.cluster, task, member.ends_with_trainer, patience)
            return
        if FLAGS.profile_step is not None:
            count_cpu_memory()
        devices = None if FLAGS.devices is None else parse_devices(FLAGS.devices)
        with quiet_startup():
            from lingvo_pipe import jobs
            from lingvo_pipe.pipeline.devices.dismissal import workers_dismissed_after
        if FLAGS.list_models:
            print("\n".join(jobs.list_models(FLAGS.model_imports)))
            return
        if FLAGS.mode == "report":
            print(jobs.report_run(FLAGS.logdir, FLAGS.model))
            return
        watch = watch_of(member, _START)
        model = jobs.ModelRequest(
            name=FLAGS.model,
            imports=FLAGS.model_imports,
            override=FLAGS.model_params_override,
            data_dir=FLAGS.data_dir,
            max_steps=FLAGS.max_steps,
            devices=devices,
            cluster=member.cluster,
            await_workers=watch.begin if watch else None,
        )
        with contextlib.ExitStack() as stack:
            if member.ends_with_trainer and member.cluster is not None:
                stack.enter_context(workers_dismissed_after(member.cluster))
            if watch is not None:
                stack.enter_context(watch.surviving())
            _do(model)


def _do(model: ModelRequest) -> None:
    """Does a job, or what --mode says, with a model."""
    from lingvo_pipe import jobs

    if FLAGS.job in _USING_JOBS:
        use = jobs.RunUse(
            FLAGS.logdir,
            FLAGS.split,
            FLAGS.checkpoint,
            FLAGS.follow_seconds,
            FLAGS.allow_params_change,
        )
        do = {
            "evaler": jobs.evaluate_data_set,
            "decoder": jobs.decode_data_set,
            "exporter": jobs.export_trained,
        }
        do[FLAGS.job](model, use)
    elif FLAGS.mode == "inspect_model":
        print(jobs.inspect_model(model))
    elif FLAGS.mode == "inspect_params":
        print(jobs.inspect_params(model))
    elif FLAGS.mode == "diff_params":
        print(jobs.diff_params(model, FLAGS.other_model, FLAGS.logdir))
    else:
        jobs.train_model(
            model, FLAGS.logdir, FLAGS.profile_step, FLAGS.allow_params_change
        )


def _parse(argv: Sequence[str]) -> list[str]:
    try:
        return FLAGS(argv)
    except flags.Error as error:
        exit_with(f"{str(error).rstrip(' ?.')}. --help shows all flags.")


def _check_flags(argv: Sequence[str], member: Membership) -> None:
    if argv[1:]:
        raise ValueError(
            f"Arguments must be flags, with --; got {' '.join(argv[1:])}. --help shows "
            "all flags."
        )
    if FLAGS.list_models:
        return
    if FLAGS.job == "worker":
        if not member.source:  # A scheduler starts all tasks with the same flags.
            check_worker_flags(_given_flags())
        return
    if FLAGS.task is not None:
        raise ValueError("--task says which worker this is; it needs --job=worker.")
    _check_flags_of_jobs()
    needed = {"train": ["model", "logdir"], "report": ["logdir"]}.get(
        FLAGS.mode, ["model"]
    )
    missing = [f"--{name}" for name in needed if not FLAGS[name].value]
    if missing:
        is_using = FLAGS.job in _USING_JOBS
        asked = f"--job={FLAGS.job}" if is_using else f"--mode={FLAGS.mode}"
        raise ValueError(
            f"{asked} needs {' and '.join(missing)}. For example: "
            "--model=image.digits.AmoebaNetDigits --logdir=/tmp/digits. --list_models "
            "prints all models, --help shows all flags."
        )
    _check_flags_of_modes()


def _check_flags_of_modes() -> None:
    """Raises ValueError for a flag that is another mode's, or that one needs."""
    is_diff = FLAGS.mode == "diff_params"
    of_mode = {
        "profile_step": FLAGS.mode == "train",
        "allow_params_change": FLAGS.mode == "train",
        "other_model": is_diff,
    }
    if FLAGS.mode == "report":
        wrong = sorted(_given_flags() - set(_REPORT_FLAGS))
    else:
        wrong = [n for n, is_its in of_mode.items() if not is_its and FLAGS[n].present]
    if wrong:
        wrong = [f"--{name}" for name in wrong]
        raise ValueError(
            f"--mode={FLAGS.mode} takes no {' and no '.join(wrong)}. Leave it out, or "
            "choose another --mode."
        )
    if is_diff and (FLAGS.other_model is None) == (FLAGS.logdir is None):
        raise ValueError(
            "--mode=diff_params compares --model with --other_model, or with the run "
            f"in --logdir; got {FLAGS.other_model} and {FLAGS.logdir}. Give one of "
            "them."
        )


def _check_flags_of_jobs() -> None:
    """Raises ValueError for a flag that is another job's."""
    is_using = FLAGS.job in _USING_JOBS
    others = _TRAINING_FLAGS if is_using else _USING_FLAGS
    given = [f"--{name}" for name in others if FLAGS[name].present]
    if given:
        what = "trains nothing" if is_using else "only trains"
        raise ValueError(
            f"--job={FLAGS.job} {what}, so it takes no {' and no '.join(given)}. Leave "
            "it out, or choose another --job."
        )
    if FLAGS.checkpoint is not None and FLAGS.follow_seconds is not None:
        raise ValueError(
            "--follow_seconds takes each newest checkpoint, so it takes no "
            f"--checkpoint={FLAGS.checkpoint}. Leave one of them out."
        )


def _given_flags() -> set[str]:
    """Names of the trainer's flags that are on the command line."""
    ours = {flag.name for flag in FLAGS.get_flags_for_module(sys.modules[__name__])}
    return {name for name in ours if FLAGS[name].present}


if __name__ == "__main__":
    run()
