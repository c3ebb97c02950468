"""Runs pytest as a Bazel test, over the *_test.py files and options given as arguments.

The test fails if pytest collects no test, or does not report success.
"""

import atexit
import itertools
import os
import resource
import sys
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

_MAX_TOGETHER = 70  # Tests of one file that stay in one shard.


def _options(environment: Mapping[str, str]) -> list[str]:
    # Nothing is written next to the tests, which Bazel links to the source tree.
    always = ["--rootdir=.", "--config-file=pyproject.toml", "-pno:cacheprovider"]
    options = {
        "XML_OUTPUT_FILE": "--junit-xml={}",
        "TEST_TMPDIR": "--basetemp={}/pytest",
    }
    requested = [name for name in options if environment.get(name)]
    return always + [options[name].format(environment[name]) for name in requested]


def _with_filter(arguments: list[str], requested: str | None) -> list[str]:
    """Returns the arguments with all `-k` filters joined, also the one from Bazel."""
    is_selecting = [x.startswith("-k=") for x in arguments]
    expressions = [x[3:] for x in itertools.compress(arguments, is_selecting)]
    expressions += [requested] if requested else []
    unfiltered = [x for x in arguments if not x.startswith("-k=")]
    if not expressions:
        return unfiltered
    return [*unfiltered, f"-k={' and '.join(f'({x})' for x in expressions)}"]


class Shard:
    """A pytest plugin that runs only one shard of the tests. Shards count from 0."""

    def __init__(self, index: int, number: int) -> None:
        self._index, self._number = index, number
        self.is_empty = False

    @pytest.hookimpl(trylast=True)  # After -m and -k have deselected tests.
    def pytest_collection_modifyitems(self, config: Any, items: list[Any]) -> None:
        shards = shards_of([item.location[0] for item in items], self._number)
        is_selected = [shard == self._index for shard in shards]
        self.is_empty = bool(items) and not any(is_selected)
        deselected = [
            item
            for item, selected in zip(items, is_selected, strict=True)
            if not selected
        ]
        config.hook.pytest_deselected(items=deselected)
        items[:] = itertools.compress(items, is_selected)


def shards_of(files: list[str], number: int) -> list[int]:
    """Returns the number of each test's shard, from 0. `files` names each test's file.

    The tests of a file stay together, unless the file has more than `_MAX_TOGETHER`.
    """
    seen: Counter[str] = Counter()
    turns: dict[tuple[str, int], int] = {}
    shards = []
    for file in files:
        turn = turns.setdefault((file, seen[file] // _MAX_TOGETHER), len(turns))
        shards.append(turn % number)
        seen[file] += 1
    return shards


def main(arguments: list[str], environment: Mapping[str, str]) -> int:
    """Runs pytest, and returns its exit code."""
    arguments = [
        x for x in arguments if not x.endswith(".py") or x.endswith("_test.py")
    ]
    if not any(argument.endswith("_test.py") for argument in arguments):
        raise ValueError(f"Expected files named *_test.py, got {arguments}.")
    arguments = _with_filter(arguments, environment.get("TESTBRIDGE_TEST_ONLY"))
    plugins = []
    if "TEST_TOTAL_SHARDS" in environment:
        # Shows Bazel that sharding is supported.
        Path(environment["TEST_SHARD_STATUS_FILE"]).touch()
        names = ("TEST_SHARD_INDEX", "TEST_TOTAL_SHARDS")
        plugins.append(Shard(*(int(environment[name]) for name in names)))
    code = pytest.main(_options(environment) + arguments, plugins)
    if code == pytest.ExitCode.NO_TESTS_COLLECTED and any(p.is_empty for p in plugins):
        return 0
    return int(code)


def _end(code: int) -> None:
    """Ends the process as Python does, but without a second to free TensorFlow."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    print(f"\nCPU seconds: {sum(u.ru_utime + u.ru_stime for u in usages):.1f}")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    # Tests must not import modules from this folder.
    del sys.path[0]
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True
    _end(main(sys.argv[1:], os.environ))
