"""The directory of one training run.

    params.txt      the model's name, accepted changes of its params, and its params
    vocabulary.txt  the fingerprint of the model's vocabulary, if there is one
    vocabulary.model  the vocabulary
    class_names.json  the names of the classes (see run_classes), if there are any
    metrics.jsonl   metrics (see metrics_log)
    best.json       the best evaluation (see best_evaluation), if a metric ranks them
    skipped_batches.json  skipped batches (see skipped_batches), if any
    initial_weights.txt  which weights come from another run or file, if some do
    parts.json      the devices and the speed of each part of the run (see run_parts)
    lock            the process of the trainer, or of the last one
    checkpoints/    checkpoints (see checkpointer), and a record of the files above that
                    a resumed run depends on (see resume_record)
    profile/        profiles of steps (see step_profile), if requested
    evaler/         metrics of evaluations by other processes (see run_evaluations)
    export/         SavedModels by step (see export), if requested
    decoder/        translations and their scores (see decoder_run), if requested
    report.html     a page about all this (see report)
    <split>/        the metrics as events for TensorBoard

`params.txt` is the first file written after `lock`, and marks a directory as a run's.
A directory that has other files but no `params.txt` is refused.
"""

import contextlib
import os
import re
import socket
import stat
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from lingvo_pipe.core import regular_file
from lingvo_pipe.core.atomic_file import scratch_path, write_atomically
from lingvo_pipe.core.checks import is_count
from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.hyperparams.literals import read_plain
from lingvo_pipe.hyperparams.text_entries import entries_by_path

LOCK_NAME = "lock"
# As long as the longest path below the directory, or longer.
_LONGEST_NAME = "x" * 100
_FOLDERS = "checkpoints", "profile", "evaler", "export", "decoder", "train", "test"
_HEADER = re.compile(r"# model: (\S+)\n((?:# since step .*\n)*)")


class RunDirectory:
    """The directory of a run of one model.

    If `model_name` is None, the model is the one named in `params.txt`. The directory
    is created when it is locked or when params are written. Symbolic links, and files
    of another user, could make a run overwrite files by mistake. So they are refused,
    unless `allow_foreign`. A file that is a link is refused even then. If `writes` is
    False, the directory need not be writable.

    Raises:
        ValueError: if the directory cannot be used, or is another model's.
    """

    def __init__(
        self,
        logdir: str | Path,
        model_name: str | None,
        allow_foreign: bool = False,
        writes: bool = True,
    ) -> None:
        regular_file.check_local("--logdir", str(logdir))
        regular_file.check_no_pattern("--logdir", str(logdir))
        self.path = Path(logdir)
        self.params_path = self.path / "params.txt"
        self.best_path = self.path / "best.json"
        self.skipped_batches_path = self.path / "skipped_batches.json"
        self.initial_weights_path = self.path / "initial_weights.txt"
        self.parts_path = self.path / "parts.json"
        self.checkpoints_path = self.path / "checkpoints"
        self.profile_path = self.path / "profile"
        self.evaler_path = self.path / "evaler"
        self.export_path = self.path / "export"
        self.decoder_path = self.path / "decoder"
        self.report_path = self.path / "report.html"
        self._lock: IO[Any] | None = None
        if not allow_foreign:
            _check_own(self.path)
        self._check_folders()
        if writes:
            self._check_writable()
        self.model_name = model_name or read_model_name(self.params_path)
        self._check_model()

    def lock(self) -> None:
        """Locks the directory for this object, and creates it if missing.

        The system releases the lock when the process ends. The lock's file names the
        last process that held the lock, unless that file is a hard link.

        Raises:
            ValueError: if another process holds the lock.
        """
        if self._lock is not None:
            return
        self.path.mkdir(parents=True, exist_ok=True)
        file = regular_file.open_file(self.path / LOCK_NAME, "ab+")
        try:
            regular_file.lock_file(file, self.path / LOCK_NAME, waits=False)
        except BlockingIOError as error:
            file.seek(0)
            holder = " ".join(file.read(200).decode(errors="replace").split())
            holder = holder or "another process"
            file.close()
            raise UserValueError(
                path=str(self.path),
                expected="one trainer at a time",
                got=Words(f"a second one beside {holder}"),
                hint="Wait until it ends, stop it, or choose another --logdir.",
            ) from error
        if os.fstat(file.fileno()).st_nlink == 1:  # Else it may be another file too.
            with regular_file.naming(self.path / LOCK_NAME):
                file.truncate(0)
                process = f"process {os.getpid()} of {socket.gethostname()}\n"
                file.write(process.encode())
                file.flush()
        self._lock = file

    def check_present(self) -> None:
        """Raises ValueError if the locked directory was removed or replaced."""
        if self._lock is not None:
            regular_file.check_present(self._lock, self.path / LOCK_NAME)

    def unlock(self) -> None:
        """Releases the lock if this object holds it."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def write_params(
        self,
        params_text: str,
        changes: Sequence[str] = (),
        keeps_changes: bool = True,
    ) -> None:
        """Writes the params. Adds lines of changes, such as `since step 3: ...`.

        Drops earlier such lines unless `keeps_changes`.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        earlier = self.read_changes() if keeps_changes else []
        head = [f"model: {self.model_name}", *earlier, *changes]
        text = "".join(f"# {' '.join(line.split())}\n" for line in head)
        write_atomically(self.params_path, f"{text}{params_text}")

    def write_initial_weights(self, text: str) -> None:
        """Writes which weights come from elsewhere. Removes the file if none do."""
        if text:
            write_atomically(self.initial_weights_path, text)
        else:
            self.initial_weights_path.unlink(missing_ok=True)

    def read_changes(self) -> list[str]:
        """Returns the lines about changed params that `write_params` wrote."""
        header = _HEADER.match(regular_file.read_text(self.params_path) or "")
        return [line[2:] for line in header[2].splitlines()] if header else []

    def read_params(self) -> str | None:
        """Returns the text of the run's params, or None if there is no file.

        Raises:
            ValueError: if the params are damaged.
        """
        text = regular_file.read_text(self.params_path)
        if text is None:
            return None
        text = _HEADER.sub("", text, count=1)
        try:
            entries_by_path(text)
        except ValueError as error:
            path = self.params_path
            raise regular_file.damaged(path, "params", error) from error
        return text

    def last_step(self) -> int | None:
        """Returns the step at which the run ends, or None if it is unknown."""
        return self._param(
            "task.train.max_steps",
            lambda x: is_count(x, 0) and x < 2**63,
            "an integer",
        )

    def best_metric(self) -> str | None:
        """Returns the metric that ranks the run's evaluations, or None."""
        return self._param(
            "task.eval.best_metric", lambda x: isinstance(x, str), "a text"
        )

    def _param(self, path: str, predicate: Callable[[Any], bool], expected: str) -> Any:
        entry = entries_by_path(self.read_params() or "").get(path)
        if entry is None:
            return None
        with contextlib.suppress(ValueError):
            value = read_plain(entry.text)
            if value is None or predicate(value):
                return value
        expected = f"{expected} as {path}"
        raise regular_file.damaged(self.params_path, expected, entry.text)

    def _check_folders(self) -> None:
        for name in _FOLDERS:
            folder = self.path / name
            if os.path.lexists(folder) and not folder.is_dir():
                raise regular_file.damaged(folder, "a folder", Words("a file"))

    def _check_writable(self) -> None:
        existing = self.path
        while not os.path.lexists(existing):
            existing = existing.parent
        try:
            with contextlib.suppress(FileNotFoundError):
                os.lstat(self.path / _LONGEST_NAME)  # The path may be too long.
            with tempfile.TemporaryFile(dir=existing):
                pass
        except OSError as error:
            raise UserValueError(
                path="--logdir",
                expected="a writable directory",
                got=Words(f"{self.path} ({error.strerror})"),
            ) from error

    def _check_model(self) -> None:
        if not self.path.exists():
            return
        if not self.params_path.exists():
            check_params_present(self.path)
            trainer_paths = {scratch_path(self.params_path), self.path / LOCK_NAME}
            if set(self.path.iterdir()) - trainer_paths:
                raise UserValueError(
                    path="--logdir",
                    expected="an empty or new directory, or an earlier run's",
                    got=Words(f"{self.path}, which has files but no params.txt"),
                )
            return
        model_name = read_model_name(self.params_path)
        if model_name != self.model_name:
            raise UserValueError(
                path="--logdir",
                expected=f"a run of {self.model_name}",
                got=Words(f"{self.path}, one of {model_name}"),
                hint=f"Choose another --logdir, or pass --model={model_name}.",
            )


def read_model_name(params_path: Path) -> str:
    """Returns the model's name in `params.txt`.

    Raises:
        ValueError: if the file names no model.
    """
    header = _HEADER.match(regular_file.read_text(params_path) or "")
    if header is None:
        expected = "a first line '# model: NAME'"
        raise regular_file.damaged(params_path, expected, Words("none"))
    return header[1]


def check_params_present(logdir: Path) -> None:
    """Raises ValueError if a directory with checkpoints has no `params.txt`."""
    params_path = logdir / "params.txt"
    if (logdir / "checkpoints").is_dir() and not params_path.exists():
        raise regular_file.damaged(params_path, "the run's params", Words("no file"))


def _check_own(path: Path) -> None:
    """Raises ValueError if a file is a link, or is neither this user's nor root's."""
    entries = [path, Path(os.path.realpath(path))]
    for folder, folders, files in os.walk(path):
        entries += [Path(folder, name) for name in (*folders, *files)]
    for entry in entries:
        try:
            status = entry.lstat()
        except OSError:  # Another process has just removed or renamed it.
            continue
        if status.st_uid not in (0, os.geteuid()):
            problem = f"which belongs to another user ({status.st_uid})"
        elif stat.S_ISLNK(status.st_mode) and entry != path:
            problem = "which is a symbolic link"
        else:
            continue
        raise UserValueError(
            path="--logdir",
            expected="only files of this user",
            got=Words(f"{entry}, {problem}"),
            hint="If you trust whoever put it there, accept it by "
            "--allow_foreign_logdir, or allow_foreign=True in Python.",
        )
