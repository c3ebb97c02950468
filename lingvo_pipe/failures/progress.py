"""What a job leaves behind, as a text that changes when there is more of it."""

from __future__ import annotations

from pathlib import Path

_CHECKPOINTS = "checkpoints"
# In which folder of LOGDIR a job writes what a restart will find, and which files.
_FILES = {
    "trainer": (_CHECKPOINTS, "ckpt-*.index"),
    "evaler": ("evaler", "**/*"),
    "decoder": ("decoder", "**/*"),
    "exporter": ("export", "**/*"),
}


def progress_of(job: str, logdir: str) -> str:
    """How far a job has come.

    Args:
        job: as of the trainer's --job; of others nothing is known.
        logdir: of the run.
    """
    if job not in _FILES:
        return ""
    folder, pattern = _FILES[job]
    found = sorted(Path(logdir, folder).glob(pattern))
    sizes = [_size(path) for path in found]
    return f"{found[-1].name if found else 'nothing'} {len(found)} {sum(sizes)}"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0  # It has been deleted meanwhile.
