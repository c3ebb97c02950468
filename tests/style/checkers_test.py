"""The formatter, the linter and the type checker find nothing in the project."""

import os
import subprocess
import sys

import pytest

from tests.style.builds import ROOT


@pytest.mark.parametrize(
    "command",
    [
        ["ruff", "format", "--check", "--diff", "--no-cache"],
        ["ruff", "check", "--no-cache"],
        ["mypy"],  # Its cache, .mypy_cache in the tree, survives from run to run.
    ],
    ids=["format", "lint", "types"],
)
def test_finds_nothing(command: list[str]) -> None:
    # Bazel's PYTHONPATH would show mypy every module a second time.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    checked = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if checked.returncode:
        pytest.fail(f"{' '.join(command)}:\n{checked.stdout}", pytrace=False)
