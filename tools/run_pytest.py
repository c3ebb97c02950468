"""Runs pytest as a Bazel test, over the files and options given as arguments.

Of the files only those named *_test.py hold tests. No test collected is a failure, as
is all else that pytest does not call a success.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest


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

    Neighbours stay together, and so do the tests of a file that is no longer than a
    part: they share what they prepare.

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
        files = [item.location[0] for item in items]
        start, end = (
            boundary(files, len(files) * i // self._number)
            for i in (self._index, self._index + 1)
        )
        self.is_empty = bool(items) and start == end
        config.hook.pytest_deselected(items=[*items[:start], *items[end:]])
        items[:] = items[start:end]


def boundary(files: list[str], at: int) -> int:
    """Returns the start of the file that `at` lies in, or `at` if the file is large.

    Args:
        files: the file of each test, in order.
        at: a number of tests, from 0 to all of them.
    """
    if at in (0, len(files)):
        return at
    first = files.index(files[at])
    return at if files.count(files[at]) > _MAX_TOGETHER else first


_MAX_TOGETHER = 100


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
        Path(
            environment["TEST_SHARD_STATUS_FILE"]
        ).touch()  # Says that shards are known.
        index, number = (
            environment["TEST_SHARD_INDEX"],
            environment["TEST_TOTAL_SHARDS"],
        )
        plugins.append(Shard(int(index), int(number)))
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
