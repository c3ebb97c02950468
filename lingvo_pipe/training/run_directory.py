"""The directory of one training run.

    params.txt      the model's name and its params
    vocabulary.txt  the fingerprint of its vocabulary, if it has one
    metrics.jsonl   metrics (see metrics_log)
    best.json       the best evaluation (see best_evaluation), if one is looked for
    skipped_batches.json  batches left out (see skipped_batches), if any are
    lock            who trains it, or was the last to (see run_lock)
    checkpoints/    checkpoints (see checkpoints)
    profile/        profiles of steps (see step_profile), if asked for
    evaler/         metrics of evaluations by other processes (see evaler_run)
    export/         SavedModels by step (see export), if asked for
    decoder/        translations and their scores (see decoder_report), if asked for
    report.html     a page about all that (see report)
    <split>/        the same metrics as events for TensorBoard

`params.txt` marks a directory as ours: it is the first file written, and a directory
that holds other files but lacks it is refused.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

from lingvo_pipe.hyperparams.text_diff import entries_by_path
from lingvo_pipe.training.atomic_file import scratch_path, write_atomically
from lingvo_pipe.training.run_lock import LOCK_NAME, RunLock

_HEADER = re.compile(r"# model: (\S+)\n")


class RunDirectory:
    """A directory that belongs to one model.

    One that is missing is made when its params are written, so that a run which can't
    begin leaves nothing.

    Args:
        logdir: The directory, as given on the command line.
        model_name: The name under which the model is registered.

    Raises:
        ValueError: If the directory cannot be written or made, or holds something
            else.
    """

    def __init__(self, logdir: str | Path, model_name: str) -> None:
        self.path = Path(logdir)
        self.params_path = self.path / "params.txt"
        self.best_path = self.path / "best.json"
        self.skipped_batches_path = self.path / "skipped_batches.json"
        self.checkpoints_path = self.path / "checkpoints"
        self.profile_path = self.path / "profile"
        self.evaler_path = self.path / "evaler"
        self.export_path = self.path / "export"
        self.decoder_path = self.path / "decoder"
        self.report_path = self.path / "report.html"
        self.model_name = model_name
        self._lock = RunLock(self.path)
        self._check_writable()
        self._check_owner()

    def lock(self) -> None:
        """Takes the directory, which is made if need be, for this process alone.

        Raises:
            ValueError: if another process has it.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock.acquire()

    def unlock(self) -> None:
        """Gives it back, if this process has it."""
        self._lock.release()

    def write_params(self, params_text: str) -> None:
        """Writes the params of the model, in place of earlier ones."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_atomically(self.params_path, f"# model: {self.model_name}\n{params_text}")

    def read_params(self) -> str | None:
        """Returns the params last written, or None in a new directory.

        Raises:
            ValueError: if they have been damaged since.
        """
        if not self.params_path.exists():
            return None
        text = _HEADER.sub("", self._text(), count=1)
        try:
            entries_by_path(text)
        except ValueError as error:
            raise ValueError(
                f"{self.params_path} must be as it was written. {error} Put back a "
                "copy, or use another --logdir."
            ) from error
        return text

    def last_step(self) -> int | None:
        """The step at which the run ends, or None in a new directory."""
        text = self.read_params()
        if text is None:
            return None
        return int(entries_by_path(text)["task.train.max_steps"].text)

    def _check_writable(self) -> None:
        """Tries the directory, or the one in which it is to be made."""
        there = self.path
        while not os.path.lexists(there):
            there = there.parent
        try:
            with tempfile.TemporaryFile(dir=there):
                pass
        except OSError as error:
            raise ValueError(
                f"logdir must be a directory that can be written; got {self.path} "
                f"({error.strerror}). Choose another --logdir."
            ) from error

    def _check_owner(self) -> None:
        if not self.path.exists():
            return
        if not self.params_path.exists():
            ours = {scratch_path(self.params_path), self.path / LOCK_NAME}
            if set(self.path.iterdir()) - ours:
                raise ValueError(
                    "logdir must be empty, new or the directory of an earlier run; "
                    f"got {self.path}, which holds files but no params.txt. Choose "
                    "another --logdir."
                )
            return
        found = read_model_name(self.params_path)
        if found != self.model_name:
            raise ValueError(
                f"logdir must hold runs of {self.model_name}; got {self.path}, which "
                f"holds one of {found}. Choose another --logdir, or give "
                f"--model={found}."
            )

    def _text(self) -> str:
        return self.params_path.read_text(encoding="utf-8")


def read_model_name(params_path: Path) -> str:
    """The name of the model whose params a run's `params.txt` holds.

    Raises:
        ValueError: If it names none.
    """
    header = _HEADER.match(params_path.read_text(encoding="utf-8"))
    if header is None:
        raise ValueError(
            "params.txt must begin with a line '# model: NAME'; got "
            f"{params_path} without one. Choose another --logdir."
        )
    return header[1]
