"""Checks that the trainer's flags fit together, before TensorFlow is imported."""

from collections.abc import Iterable, Sequence

from lingvo_pipe.cli.flags import FLAGS, USING_JOBS, given_flags, our_flags
from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.core.near_names import did_you_mean
from lingvo_pipe.core.regular_file import check_local
from lingvo_pipe.pipeline.devices.scheduler_environment.membership import Membership

_TRAINING_FLAGS = ("mode", "max_steps", "profile_step", "other_model")
_FILE_FLAGS = ("input_file", "output_file", "target_language")
_USING_FLAGS = ("split", "checkpoint", "follow_seconds", *_FILE_FLAGS)
_REPORT_FLAGS = {"job", "mode", "logdir", "model", "traceback", "allow_foreign_logdir"}
_NEEDED_BY_WORKERS = ("cluster", "task")
_OTHERS_OF_WORKERS = {"job", "cluster_spec", "listen_on_all_addresses", "traceback"}
# What absl's flags for logging ask for, and get.
_LOGGING_FLAGS = {"logtostderr", "alsologtostderr", "verbosity"}
_MAX_SECONDS = 1e9
_NEEDED_BY_MODE = {"train": ["model", "logdir"], "report": ["logdir"]}


def check_flags(argv: Sequence[str], member: Membership) -> None:
    """Raises ValueError unless the flags fit the job and mode, with no arguments."""
    if argv[1:]:
        raise UserValueError(
            f"Expected flags, which begin with --, got {' '.join(argv[1:])}. --help "
            "shows all flags."
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
        raise UserValueError("--task is the number of a worker; it needs --job=worker.")
    _check_job()
    _check_needed()
    _check_mode()


def _given(names: Iterable[str]) -> list[str]:
    return [f"--{name}" for name in names if FLAGS[name].present]


def _check_logging_flags() -> None:
    """Refuses flags that absl defines and nothing here uses, such as --log_dir."""
    for flag in FLAGS.flags_by_module_dict().get("absl.logging", ()):
        if flag.present and flag.name not in _LOGGING_FLAGS:
            raise UserValueError(
                f"Unknown flag --{flag.name}."
                f"{did_you_mean(flag.name, our_flags())} --help shows all flags."
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
    missing = [f"--{name}" for name in _NEEDED_BY_WORKERS if FLAGS[name].value is None]
    allowed = _OTHERS_OF_WORKERS.union(_NEEDED_BY_WORKERS)
    more = sorted(f"--{name}" for name in given_flags() - allowed)
    if missing or more:
        raise UserValueError(
            "--job=worker needs --cluster and --task, and no flags of the trainer; "
            f"missing: {missing}, too many: {more}. For example: --job=worker "
            "--task=0 --cluster=worker=host1:2222,host2:2222."
        )


def _check_job() -> None:
    is_using = FLAGS.job in USING_JOBS
    foreign_flags = _TRAINING_FLAGS if is_using else _USING_FLAGS
    if wrong := _given(foreign_flags):
        reason = "trains nothing" if is_using else "only trains"
        raise UserValueError(
            f"--job={FLAGS.job} {reason}, so it takes no {' and no '.join(wrong)}. "
            "Leave it out, or choose another --job."
        )
    _check_files()
    if FLAGS.checkpoint is not None and FLAGS.follow_seconds is not None:
        raise UserValueError(
            "--follow_seconds uses each new checkpoint, so it takes no "
            f"--checkpoint={FLAGS.checkpoint}. Leave one of them out."
        )


def _check_files() -> None:
    """Checks that flags of files are there for a file to translate, and only then."""
    is_file = FLAGS.job == "decoder" and FLAGS.input_file
    foreign_flags = ("split", "follow_seconds") if is_file else _FILE_FLAGS
    wrong = _given(foreign_flags)
    if wrong:
        raise UserValueError(
            f"--input_file is a file for --job=decoder to translate, once, instead of "
            f"a --split; got --job={FLAGS.job} and {' and '.join(wrong)}"
            f"{'' if is_file else ', but no file to translate'}. Leave "
            f"{'them' if len(wrong) > 1 else 'it'} out."
        )


def _check_needed() -> None:
    needed = _NEEDED_BY_MODE.get(FLAGS.mode, ["model"])
    missing = [f"--{name}" for name in needed if not FLAGS[name].value]
    if missing:
        is_using = FLAGS.job in USING_JOBS
        flag = f"--job={FLAGS.job}" if is_using else f"--mode={FLAGS.mode}"
        raise UserValueError(
            f"{flag} needs {' and '.join(missing)}. For example: "
            "--model=image.digits.AmoebaNetDigits --logdir=/tmp/digits. --list_models "
            "prints all models, --help shows all flags."
        )


def _check_mode() -> None:
    is_diff = FLAGS.mode == "diff_params"
    is_allowed = {
        "profile_step": FLAGS.mode == "train",
        "allow_params_change": FLAGS.mode == "train",
        "allow_foreign_logdir": FLAGS.mode in ("train", "report")
        or (is_diff and FLAGS.logdir is not None),
        "other_model": is_diff,
    }
    wrong = _given(name for name, allowed in is_allowed.items() if not allowed)
    if FLAGS.mode == "report":
        wrong = _given(sorted(given_flags() - _REPORT_FLAGS))
    if wrong:
        raise UserValueError(
            f"--mode={FLAGS.mode} takes no {' and no '.join(wrong)}. "
            "Leave it out, or choose another --mode."
        )
    if is_diff and (FLAGS.other_model is None) == (FLAGS.logdir is None):
        raise UserValueError(
            "--mode=diff_params compares --model with --other_model, or with the run "
            f"in --logdir; got {FLAGS.other_model} and {FLAGS.logdir}. Give one of "
            "them."
        )
