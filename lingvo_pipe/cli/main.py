"""The trainer's main program: from flags to a job."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from absl import logging

from lingvo_pipe.cli.cluster_flags import (
    elastic_job,
    job_restarts,
    resolve_membership,
    worker_watch,
)
from lingvo_pipe.cli.error_output import STOPPED_CODE, errors_as_lines
from lingvo_pipe.cli.flag_checks import SAMPLING_FLAGS, check_flags
from lingvo_pipe.cli.flags import FLAGS
from lingvo_pipe.cli.lasting_output import keep_output
from lingvo_pipe.core.signals import exit_on_sigterm
from lingvo_pipe.core.tensorflow_startup import count_cpu_memory, importing_tensorflow
from lingvo_pipe.fault_tolerance.free_memory import return_free_memory
from lingvo_pipe.fault_tolerance.restarts import ProcessStart
from lingvo_pipe.pipeline.devices.cluster_spec import Cluster, checked_task
from lingvo_pipe.pipeline.devices.device_names import parse_devices
from lingvo_pipe.pipeline.devices.scheduler_environment.membership import Membership

if TYPE_CHECKING:
    from lingvo_pipe.cli.model_request import ModelRequest

# Noted before anything is changed.
_START = ProcessStart.now()


def main(argv: Sequence[str]) -> None:
    """Checks the flags before TensorFlow is imported, and runs their job."""
    exit_on_sigterm()  # Until the job handles signals itself.
    if not FLAGS["verbosity"].present:
        logging.set_verbosity(logging.WARNING)
    with errors_as_lines():
        member = resolve_membership()
        check_flags(argv, member)
        if member.source:
            print(member.note())
        if FLAGS.job == "worker" and member.cluster is not None:
            _serve(member, member.cluster)
        else:
            _run_job(member)


def _serve(member: Membership, cluster: Cluster) -> None:
    task = checked_task(FLAGS.task, cluster.workers)
    with importing_tensorflow():
        from lingvo_pipe.pipeline.devices.worker import serve
    return_free_memory()
    serve(cluster, task, member.ends_with_trainer, FLAGS.wait_for_workers_seconds)


def _run_job(member: Membership) -> None:
    if FLAGS.profile_step is not None:
        count_cpu_memory()
    if FLAGS.mode == "train" and not FLAGS.list_models:
        keep_output()
    devices = None if FLAGS.devices is None else parse_devices(FLAGS.devices)
    with importing_tensorflow():
        from lingvo_pipe.cli import inspect_jobs
        from lingvo_pipe.cli.model_request import ModelRequest
        from lingvo_pipe.pipeline.devices.handshake import announcing_shutdown
        from lingvo_pipe.training.loop.save_times import SaveRequest
    # TensorFlow's modules and graphs are millions of objects. With Python's own
    # thresholds, looking through them for garbage takes a sixth of the start's time.
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    if FLAGS.list_models:
        print("\n".join(inspect_jobs.list_models(FLAGS.model_imports)))
        return
    if FLAGS.mode == "report":
        page = inspect_jobs.report_run(
            FLAGS.logdir, FLAGS.model, FLAGS.allow_foreign_logdir
        )
        print(page)
        return
    save_request = SaveRequest()
    save = save_request.ask
    restarts = job_restarts(_START, lambda: save_request.is_writing())
    elastic = elastic_job(member, restarts, save) if FLAGS.elastic else None
    watch = elastic.watch if elastic else worker_watch(member, restarts, save)
    request = ModelRequest(
        name=FLAGS.model,
        imports=FLAGS.model_imports,
        override=FLAGS.model_params_override,
        data_dir=FLAGS.data_dir,
        dataset=FLAGS.dataset,
        max_steps=FLAGS.max_steps,
        init_from=FLAGS.init_from,
        init_names=FLAGS.init_names,
        devices=devices,
        cluster=member.cluster,
        await_workers=watch.begin if watch else None,
        elastic=elastic,
        save_request=save_request,
        restart_cause=restarts.cause,
    )
    with contextlib.ExitStack() as stack:
        if member.ends_with_trainer and member.cluster is not None:
            stack.enter_context(announcing_shutdown(member.cluster))
        if elastic is not None:
            stack.enter_context(elastic.surviving())
        if watch is not None:
            stack.enter_context(watch.surviving())
        _dispatch(request)


def _dispatch(request: ModelRequest) -> None:
    from lingvo_pipe.cli import train_job, use_jobs
    from lingvo_pipe.cli.param_values import naming_override

    using = {
        "evaler": use_jobs.evaluate_data_set,
        "decoder": use_jobs.decode_data_set,
        "exporter": use_jobs.export_trained,
    }
    if FLAGS.job in using:
        use = use_jobs.RunUse(
            FLAGS.logdir,
            FLAGS.split,
            FLAGS.checkpoint,
            FLAGS.follow_seconds,
            FLAGS.allow_params_change,
            FLAGS.allow_foreign_logdir,
        )
        if FLAGS.input_file:
            settings = {
                name: FLAGS[name].value
                for name in SAMPLING_FLAGS
                if FLAGS[name].value is not None
            }
            use_jobs.write_texts(
                request,
                use,
                FLAGS.input_file,
                FLAGS.output_file,
                FLAGS.target_language,
                settings,
            )
        else:
            using[FLAGS.job](request, use)
    elif FLAGS.mode == "train":
        has_ended = train_job.train_model(
            request,
            FLAGS.logdir,
            FLAGS.profile_step,
            FLAGS.allow_params_change,
            FLAGS.allow_foreign_logdir,
        )
        if not has_ended:
            sys.exit(STOPPED_CODE)
    else:
        with naming_override(request.override):
            print(_inspect(request))


def _inspect(request: ModelRequest) -> str:
    from lingvo_pipe.cli import inspect_jobs

    if FLAGS.mode == "inspect_model":
        return inspect_jobs.inspect_model(request)
    if FLAGS.mode == "inspect_params":
        return inspect_jobs.inspect_params(request)
    return inspect_jobs.diff_params(
        request, FLAGS.other_model, FLAGS.logdir, FLAGS.allow_foreign_logdir
    )
