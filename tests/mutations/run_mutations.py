"""Runs the mutations: each must be caught by the tests that it names.

    python -m tests.mutations.run_mutations [--only NAME ...] [--jobs N] [--write]

Each job works on a copy of the tree. First the tests must pass there as it is; then
each mutation is applied, its tests run, and the file put back.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tests.mutations.mutations import MUTATIONS, Mutation

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "tests" / "README.md"
COPIED = (
    "lingvo_pipe",
    "model_registry",
    "params",
    "tests",
    "tools",
    "pyproject.toml",
)
TABLE_HEAD = "| Mutation | File | Caught by |\n|---|---|---|\n"

_PASSED, _FAILED, _HUNG = 0, 1, -1  # pytest's exit codes, and one more
_MAX_SECONDS = 900
_FIRST_FAILURE = re.compile(r"^(?:FAILED|ERROR) (tests/[^\s\[]+)(.*)$", re.MULTILINE)
_INVALID = re.compile(r"\b(?:Syntax|Import|ModuleNotFound|Name)Error\b")


class Outcome(NamedTuple):
    """The fate of a mutation: caught, lived or error; the first test that failed."""

    mutation: Mutation
    verdict: str
    seconds: float
    test: str


def run(mutation: Mutation, copy: Path) -> Outcome:
    """Returns what becomes of a mutation in a copy of the tree, and puts it back."""
    path, begun = copy / mutation.path, time.monotonic()
    before = path.read_text(encoding="utf-8")
    path.write_text(before.replace(mutation.old, mutation.new), encoding="utf-8")
    try:
        verdict, test = _verdict(*_pytest(copy, mutation.tests, _MAX_SECONDS))
    finally:
        path.write_text(before, encoding="utf-8")
    return Outcome(mutation, verdict, time.monotonic() - begun, test)


def run_in_turn(mutations: Iterable[Mutation], copy: Path) -> list[Outcome]:
    """Runs mutations one after another, and prints a row for each."""
    outcomes = []
    for mutation in mutations:
        outcomes.append(run(mutation, copy))
        _, verdict, seconds, test = outcomes[-1]
        print(f"{mutation.name:42} {verdict:6} {seconds:4.0f} s  {test}", flush=True)
    return outcomes


def _copied_tree(folder: Path) -> Path:
    folder.mkdir()
    for path in (*map(ROOT.joinpath, COPIED), *ROOT.glob("*.md")):
        copy = shutil.copytree if path.is_dir() else shutil.copy2
        copy(path, folder / path.name)
    return folder


def _check_unchanged(mutations: Iterable[Mutation], copy: Path) -> None:
    """Ends the program if the tests fail without a mutation."""
    tests = dict.fromkeys(test for mutation in mutations for test in mutation.tests)
    code, output = _pytest(copy, list(tests), len(tests) * _MAX_SECONDS)
    if code != _PASSED:
        sys.exit(f"{output}\nthe tests must pass without mutations")


def _verdict(code: int, output: str) -> tuple[str, str]:
    """Returns caught, lived or error, and the first test that failed or the reason."""
    found = _FIRST_FAILURE.search(output)
    if code == _PASSED:
        return "lived", ""
    if code != _FAILED or found is None or _INVALID.search(found[2]):
        return "error", found[0] if found else f"pytest ended with {code}"
    return "caught", found[1]


def _pytest(copy: Path, tests: Sequence[str], seconds: float) -> tuple[int, str]:
    """Returns pytest's exit code, and what it has said."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    try:
        ran = subprocess.run(
            [*command, *tests],
            cwd=copy,
            # A change within a second, to a text as long, would go unseen.
            env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        return _HUNG, ""
    return ran.returncode, ran.stdout


def _write_table(outcomes: Iterable[Outcome]) -> None:
    ordered = sorted(outcomes, key=lambda outcome: MUTATIONS.index(outcome.mutation))
    rows = (f"| {m.name} | `{m.path}` | `{test}` |\n" for m, _, _, test in ordered)
    text, _, _ = README.read_text(encoding="utf-8").partition(TABLE_HEAD)
    README.write_text(text + TABLE_HEAD + "".join(rows), encoding="utf-8")


def main() -> None:
    """Runs mutations, and ends with 1 if one was not caught."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    names = [mutation.name for mutation in MUTATIONS]
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME")
    parser.add_argument("--jobs", type=int, default=1, help="mutations at a time")
    parser.add_argument("--write", action="store_true", help="the table in README.md")
    flags = parser.parse_args()
    chosen = [m for m in MUTATIONS if not flags.only or m.name in flags.only]
    with tempfile.TemporaryDirectory() as folder:
        copies = [_copied_tree(Path(folder) / str(n)) for n in range(flags.jobs)]
        _check_unchanged(chosen, copies[0])
        shares = [chosen[n :: flags.jobs] for n in range(flags.jobs)]
        with ThreadPoolExecutor(flags.jobs) as pool:
            outcomes = list(itertools.chain(*pool.map(run_in_turn, shares, copies)))
    if flags.write and not flags.only:
        _write_table(outcomes)
    sys.exit(any(outcome.verdict != "caught" for outcome in outcomes))


if __name__ == "__main__":
    main()
