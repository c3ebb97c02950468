"""pytest in forks of a process that has imported TensorFlow, on copies of the tree."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

ROOT = Path(__file__).resolve().parents[2]
HUNG = -1  # In place of an exit code.
_COPIED = (
    *("lingvo_pipe", "model_registry", "params", "tests", "tools", "pyproject.toml"),
)
_Plugin = TypeVar("_Plugin")
_MAX_BYTES = 10 << 30  # Of a fork's own memory.


def copied_tree(folder: Path) -> Path:
    """Returns a copy of the tree in a new folder, beside one for temporary files."""
    (folder / "tmp").mkdir(parents=True)
    tree = folder / "tree"
    tree.mkdir()
    for path in (*map(ROOT.joinpath, _COPIED), *ROOT.glob("*.md")):
        copy = shutil.copytree if path.is_dir() else shutil.copy2
        copy(path, tree / path.name)
    return tree


def import_frameworks() -> None:
    """Imports what takes seconds, but nothing of the product. Runs no operation."""
    os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    # A file may be mutated twice within a second, to texts as long.
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True
    import keras  # noqa: F401
    import tensorflow  # noqa: F401

    assert not any(name.startswith("lingvo_pipe") for name in sys.modules)


def run_pytest(
    tree: Path,
    arguments: Sequence[str],
    make_plugin: Callable[[], _Plugin],
    result: Callable[[_Plugin], Any],
    seconds: float,
) -> tuple[int, Any]:
    """Runs pytest in a fork. Returns its exit code and its plugin's result.

    Args:
        tree: a copy of the tree.
        arguments: pytest's.
        make_plugin: makes a plugin, in the fork.
        result: the plugin's result when pytest has ended, as JSON has it; None after
            a crash.
        seconds: after so long the fork is killed, with the processes that it started.
    """
    file = tree.parent / "result.json"
    file.unlink(missing_ok=True)
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        try:
            _set_up(tree)
            plugin = make_plugin()
            code = pytest.main(["-q", "-p", "no:cacheprovider", *arguments], [plugin])
            file.write_text(json.dumps(result(plugin)), encoding="utf-8")
            os._exit(code)
        except BaseException:
            traceback.print_exc()
            os._exit(pytest.ExitCode.INTERNAL_ERROR)
    code = _wait(pid, seconds)
    shutil.rmtree(tree.parent / "tmp", ignore_errors=True)  # A test may lock files.
    (tree.parent / "tmp").mkdir(exist_ok=True)
    return code, json.loads(file.read_text("utf-8")) if file.exists() else None


def _set_up(tree: Path) -> None:
    """Makes a fork a process of its own that imports from a tree."""
    os.setsid()
    resource.setrlimit(resource.RLIMIT_DATA, (_MAX_BYTES, _MAX_BYTES))
    output = os.open(tree.parent / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    empty = os.open(os.devnull, os.O_RDONLY)
    for standard, file in ((0, empty), (1, output), (2, output)):
        os.dup2(file, standard)
    os.chdir(tree)
    os.environ["TMPDIR"] = str(tree.parent / "tmp")
    tempfile.tempdir = None
    sys.path[:] = [str(tree), *(p for p in sys.path if p not in ("", str(ROOT)))]
    for name in [name for name in sys.modules if name.split(".")[0] == "tests"]:
        del sys.modules[name]


def _wait(pid: int, seconds: float) -> int:
    """Returns the exit code of a fork, or HUNG. Kills what is left of it."""
    ended = os.pidfd_open(pid)
    ready: list[int] = []
    try:
        ready, _, _ = select.select([ended], [], [], seconds)
    finally:
        os.close(ended)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status) if ready else HUNG


class ChosenTests:
    """A pytest plugin that runs some tests in their order, until one fails.

    Attributes:
        failed: the test that failed, or the file that could not be imported.
    """

    def __init__(self, tests: Iterable[str]) -> None:
        self.failed: str | None = None
        self._places = {test: place for place, test in enumerate(tests)}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Drops all other tests, and sorts."""
        places = self._places
        items[:] = [item for item in items if item.nodeid in places]
        items.sort(key=lambda item: places[item.nodeid])

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failed = self.failed or report.nodeid

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed = self.failed or report.nodeid
