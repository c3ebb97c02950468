"""Runs pytest as a Bazel test, over the files and options given as arguments.

Of the files only those named *_test.py hold tests. No test collected is a failure, as
is all else that pytest does not call a success.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

_MAX_TOGETHER = 70  # Tests of a file that are not parted.


def _options(environment: Mapping[str, str]) -> list[str]:
    """Returns pytest's options for what Bazel asks in the `environment`."""
    # Nothing is written beside the tests, which Bazel links to the source tree.
    found = ["--rootdir=.", "--config-file=pyproject.toml", "-pno:cacheprovider"]
    options = {
        "XML_OUTPUT_FILE": "--junit-xml={}",
        "TESTBRIDGE_TEST_ONLY": "-k={}",
        "TEST_TMPDIR": "--basetemp={}/pytest",
    }
    for variable, option in options.items():
        if value := environment.get(variable):
            found.append(option.format(value))
    return found


class Shard:
    """A pytest plugin that runs one of several parts of the tests.

    Args:
        index: the part's number, from 0.
        number: how many parts there are.
    """

    def __init__(self, index: int, number: int) -> None:
        self._index, self._number = index, number
        self.is_empty = False

    @pytest.hookimpl(trylast=True)  # After -m and -k have left out theirs.
    def pytest_collection_modifyitems(self, config: Any, items: list[Any]) -> None:
        """Leaves the part's tests."""
        parts = parts_of([item.location[0] for item in items], self._number)
        ours: list[Any] = []
        others: list[Any] = []
        for item, part in zip(items, parts, strict=True):
            (ours if part == self._index else others).append(item)
        self.is_empty = bool(items) and not ours
        config.hook.pytest_deselected(items=others)
        items[:] = ours


def parts_of(files: list[str], number: int) -> list[int]:
    """Returns the part, from 0, that each test is in.

    The tests of a file share what they prepare, so they stay together, but for files
    with very many. Files go to the parts in turn.

    Args:
        files: the file of each test, in order.
        number: of parts.
    """
    seen: Counter[str] = Counter()
    turns: dict[tuple[str, int], int] = {}
    found = []
    for file in files:
        turn = turns.setdefault((file, seen[file] // _MAX_TOGETHER), len(turns))
        found.append(turn % number)
        seen[file] += 1
    return found


def main(arguments: list[str], environment: Mapping[str, str]) -> int:
    """Runs pytest, and returns its exit code."""
    arguments = [
        each
        for each in arguments
        if not each.endswith(".py") or each.endswith("_test.py")
    ]
    if not any(each.endswith("_test.py") for each in arguments):
        raise ValueError(f"Expected files named *_test.py, got {arguments}.")
    plugins = []
    if "TEST_TOTAL_SHARDS" in environment:
        # Says that shards are known.
        Path(environment["TEST_SHARD_STATUS_FILE"]).touch()
        names = ("TEST_SHARD_INDEX", "TEST_TOTAL_SHARDS")
        plugins.append(Shard(*(int(environment[name]) for name in names)))
    code = pytest.main(_options(environment) + arguments, plugins)
    if code == pytest.ExitCode.NO_TESTS_COLLECTED and any(p.is_empty for p in plugins):
        return 0
    return int(code)


if __name__ == "__main__":
    # This folder must not be where tests find modules.
    del sys.path[0]
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    # Data sets of the tests are prepared anew: a sandbox may not write to the home.
    if "TEST_TMPDIR" in os.environ:
        os.environ["TFDS_DATA_DIR"] = os.path.join(os.environ["TEST_TMPDIR"], "data")
    sys.dont_write_bytecode = True
    sys.exit(main(sys.argv[1:], os.environ))
