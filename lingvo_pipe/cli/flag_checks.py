"""Checks that the trainer's flags fit together, before TensorFlow is imported."""

from collections.abc import Iterable, Sequence

import model_registry
from lingvo_pipe.cli.flags import FLAGS, USING_JOBS, given_flags, our_flags
from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.core.regular_file import check_local
from lingvo_pipe.pipeline.devices.scheduler_environment.membership import Membership

_INIT_FLAGS = ("init_from", "init_names")
_ELASTIC_FLAGS = ("elastic", "min_devices", "lost_worker_seconds", "grow_seconds")
_TRAINING_FLAGS = (
    *("mode", "max_steps", "profile_step", "other_model"),
    *_INIT_FLAGS,
    *_ELASTIC_FLAGS,
)
SAMPLING_FLAGS = ("max_tokens", "temperature", "top_k", "top_p", "seed")
_FILE_FLAGS = ("input_file", "output_file", "target_language", *SAMPLING_FLAGS)
_USING_FLAGS = ("split", "checkpoint", "follow_seconds", *_FILE_FLAGS)
_REPORT_FLAGS = {"job", "mode", "logdir", "model", "traceback", "allow_foreign_logdir"}
_FLAGS_OF_WORKERS = {"job", "cluster", "cluster_spec", "task", "traceback"}
_FLAGS_OF_WORKERS |= {"listen_on_all_addresses"}
# Flags of absl's logging that have an effect here.
_LOGGING_FLAGS = {"logtostderr", "alsologtostderr", "verbosity"}
_MAX_SECONDS = 1e9
_NEEDED_BY_MODE = {"train": ["model", "logdir"], "report": ["logdir"]}


def check_flags(argv: Sequence[str], member: Membership) -> None:
    """Raises a ValueError if flags contradict each other, or if one has no --."""
    if argv[1:]:
        raise UserValueError(
            path="arguments",
            expected="flags alone, which begin with --",
            got=" ".join(argv[1:]),
            hint="--help shows all flags.",
        )
    _check_logging_flags()
    for name in ("logdir", "data_dir"):
        check_local(f"--{name}", FLAGS[name].value or "")
    _check_seconds()
    if FLAGS.list_models:
        return
    if FLAGS.job == "worker":
        if not member.source:  # A scheduler starts all tasks with the same flags.
            _check_worker_flags()
        return
    if FLAGS.task is not None:
        expected = "--job=worker, since it is a worker's number"
        raise UserValueError(path="--task", expected=expected, got=Words(FLAGS.job))
    _check_job()
    _check_needed()
    _check_mode()
    _check_elastic()
    # Imports may register any name, and a report needs no model's code.
    if not FLAGS.model_imports and FLAGS.mode != "report":
        for name in filter(None, (FLAGS.model, FLAGS.other_model)):
            model_registry.CheckName(name)


def _refuse(flag: str, foreign: Iterable[str], reason: str = "") -> None:
    """Raises a ValueError if a flag in `foreign` was given, which `flag` forbids."""
    if wrong := [f"--{name}" for name in foreign if FLAGS[name].present]:
        raise UserValueError(
            path=f"{flag}={FLAGS[flag.strip('-')].value}",
            expected=f"no {' and no '.join(wrong)}{reason}",
        )


def _check_logging_flags() -> None:
    """Refuses flags that absl defines but the trainer ignores, such as --log_dir."""
    for flag in FLAGS.flags_by_module_dict().get("absl.logging", ()):
        if flag.present and flag.name not in _LOGGING_FLAGS:
            raise UserValueError(
                path="arguments",
                expected="flags of the trainer",
                got=flag.name,
                names=our_flags(),
                hint="--help shows all flags.",
            )


def _check_seconds() -> None:
    """Refuses times that are not finite, or longer than Python's threads can wait."""
    for name in (name for name in our_flags() if name.endswith("_seconds")):
        seconds = FLAGS[name].value
        if seconds is not None and not seconds <= _MAX_SECONDS:
            raise UserValueError(
                path=f"--{name}", expected="a number of at most 1e9", got=seconds
            )


def _check_worker_flags() -> None:
    _refuse("--job", sorted(given_flags() - _FLAGS_OF_WORKERS))
    missing = [f"--{name}" for name in ("cluster", "task") if FLAGS[name].value is None]
    if missing:
        raise UserValueError(
            path="--job=worker",
            expected=" and ".join(missing),
            hint="For example: --job=worker --task=0 "
            "--cluster=worker=host1:2222,host2:2222.",
        )


def _check_job() -> None:
    if FLAGS.job in USING_JOBS:
        _refuse("--job", _TRAINING_FLAGS, ", since it trains nothing")
    else:
        _refuse("--job", _USING_FLAGS, ", since it only trains")
    if FLAGS.job == "decoder" and FLAGS.input_file:
        reason = ", since the file is read once"
        _refuse("--input_file", ("split", "follow_seconds"), reason)
    else:
        reason = ", since there is no --input_file"
        if FLAGS.input_file:
            reason = ", since only --job=decoder reads a file"
        _refuse("--job", _FILE_FLAGS, reason)
    if FLAGS.follow_seconds is not None:
        reason = ", since it uses each new checkpoint"
        _refuse("--follow_seconds", ["checkpoint"], reason)


def _check_elastic() -> None:
    detail_flags = [name for name in _ELASTIC_FLAGS[1:] if FLAGS[name].present]
    if detail_flags and not FLAGS.elastic:
        raise UserValueError(path=f"--{detail_flags[0]}", expected="--elastic as well")
    lost, patience = FLAGS.lost_worker_seconds, FLAGS.wait_for_workers_seconds
    if FLAGS["lost_worker_seconds"].present and lost > patience:
        raise UserValueError(
            path="--lost_worker_seconds",
            expected=f"at most --wait_for_workers_seconds, {patience:g}",
            got=lost,
        )


def _check_needed() -> None:
    needed = _NEEDED_BY_MODE.get(FLAGS.mode, ["model"])
    missing = [f"--{name}" for name in needed if not FLAGS[name].value]
    if missing:
        is_using = FLAGS.job in USING_JOBS
        raise UserValueError(
            path=f"--job={FLAGS.job}" if is_using else f"--mode={FLAGS.mode}",
            expected=" and ".join(missing),
            hint="For example: --model=image.digits.AmoebaNetDigits "
            "--logdir=/tmp/digits. --list_models prints all models, --help shows all "
            "flags.",
        )


def _check_mode() -> None:
    is_diff = FLAGS.mode == "diff_params"
    uses_devices = FLAGS.mode != "inspect_params" and FLAGS.other_model is None
    is_allowed = {
        "logdir": FLAGS.mode == "train" or is_diff,
        **dict.fromkeys(("devices", "cluster"), uses_devices),
        **dict.fromkeys((*_INIT_FLAGS, *_ELASTIC_FLAGS), FLAGS.mode == "train"),
        "profile_step": FLAGS.mode == "train",
        "allow_params_change": FLAGS.mode == "train",
        "allow_foreign_logdir": FLAGS.mode in ("train", "report")
        or (is_diff and FLAGS.logdir is not None),
        "other_model": is_diff,
    }
    if FLAGS.mode == "report":
        _refuse("--mode", sorted(given_flags() - _REPORT_FLAGS))
    else:
        _refuse("--mode", [name for name, allowed in is_allowed.items() if not allowed])
    if is_diff and (FLAGS.other_model is None) == (FLAGS.logdir is None):
        raise UserValueError(
            path="--mode=diff_params",
            expected="either --other_model or --logdir, to compare --model with",
            got=Words(f"{FLAGS.other_model} and {FLAGS.logdir}"),
        )
