"""Tries mutants of the product: each should fail a test that runs its line.

    python -m tests.mutations.run_mutants --lines FILE --record tests/FOLDER ...
    python -m tests.mutations.run_mutants --lines FILE [--seed N] [--sample N]
        [--jobs N] [--folder lingvo_pipe/FOLDER ...] [--key KEY ...]

The first runs tests, and adds to FILE which lines each of them runs. It is needed once
for each folder, and again after a change of the product or of tests. The second draws
mutants of folders, and runs for each the tests of its line, nearest first, until one
fails. With keys it tries only these mutants of the sample. Both work on copies of the
tree.
"""

from __future__ import annotations

import argparse
import collections
import difflib
import itertools
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.mutations import covered_lines
from tests.mutations.equivalent import EQUIVALENT
from tests.mutations.forked_pytest import (
    HUNG,
    ROOT,
    ChosenTests,
    copied_tree,
    import_frameworks,
    run_pytest,
)
from tests.mutations.mutants import FOLDERS, Mutant, sample

_MAX_SECONDS = 120.0  # Of one mutant's tests, as recorded.
_MAX_FILES = 20  # Of one mutant's tests beyond the mirrored folder.
_MAX_RECORD_SECONDS = 4 * 3600


class Outcome(NamedTuple):
    """The fate of a mutant: caught, survived, equivalent, not covered or not recorded.

    `reason` is the test that failed, or what else tells.
    """

    verdict: str
    reason: str = ""


def record(lines_file: Path, paths: Sequence[str]) -> None:
    """Runs tests of the fast suite, and adds the lines that they run to a file."""
    with tempfile.TemporaryDirectory(prefix="mutants") as folder:
        tree = copied_tree(Path(folder) / "0")
        import_frameworks()
        code, recorded = run_pytest(
            tree,
            paths,
            lambda: covered_lines.LineRecorder(tree),
            lambda recorder: recorder.record,
            _MAX_RECORD_SECONDS,
        )
        if code != pytest.ExitCode.OK:
            print((tree.parent / "output.txt").read_text(encoding="utf-8"))
        if not recorded:
            sys.exit(f"pytest ended with {code}")
        covered_lines.add_to_file(lines_file, recorded)
        print(f"{len(recorded) - 1} tests recorded in {lines_file}")


def outcome(mutant: Mutant, tree: Path, lines: covered_lines.Record) -> Outcome:
    """Returns a mutant's fate in a copy of the tree, and puts the file back."""
    path = tree / mutant.path
    source, times = path.read_bytes(), path.stat()
    if reason := EQUIVALENT.get(mutant.path, {}).get(mutant.key):
        return Outcome("equivalent", reason)
    file = covered_lines.version(mutant.path, source)
    if not any(file in covered for _, covered in lines.values()):
        return Outcome("not recorded")
    tests = covered_lines.tests_of(lines, mutant.path, source, mutant.lines)
    if not tests:
        return Outcome("not covered")
    path.write_bytes(mutant.apply(source))
    try:
        for group in groups(mutant.path, tests):
            failure = _failure(tree, group, sum(tests[test] for test in group))
            if failure:
                return Outcome("caught", failure)
    finally:
        path.write_bytes(source)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    return Outcome("survived", f"{len(tests)} tests run its line")


def groups(path: str, tests: dict[str, float]) -> Iterator[list[str]]:
    """Yields tests to run: of the mirrored folder, then others, within the time.

    The tests of each distance take half of the time that is left, the shortest first,
    so that slow near tests leave time for others.
    """
    left, files = _MAX_SECONDS, set[str]()
    groups: tuple[list[str], list[str]] = ([], [])
    for distance, alike in itertools.groupby(
        tests, lambda test: covered_lines.distance(test, path)
    ):
        begun_with = left
        for test in alike:
            file = test.partition("::")[0]
            is_too_far = distance > 1 and len(files | {file}) > _MAX_FILES
            is_too_long = begun_with / 2 < begun_with - left + tests[test]
            if is_too_far or (is_too_long and left < begun_with):
                continue
            if distance > 1:
                files.add(file)
            left -= tests[test]
            groups[distance > 1].append(test)
    yield from filter(None, groups)


def _failure(tree: Path, tests: Sequence[str], seconds: float) -> str:
    """Runs tests, and returns the one that failed, or what else went wrong."""
    files = dict.fromkeys(test.partition("::")[0] for test in tests)
    code, failed = run_pytest(
        tree,
        ["-x", *files],
        lambda: ChosenTests(tests),
        lambda chosen: chosen.failed,
        60 + 5 * seconds,
    )
    if code == HUNG:
        return "the time limit"
    if code == pytest.ExitCode.NO_TESTS_COLLECTED:
        raise LookupError(f"These tests are no longer there, record again: {tests}")
    return "" if code == pytest.ExitCode.OK else failed or f"exit code {code}"


def _diff(mutant: Mutant) -> str:
    """Returns a mutant as a few lines of a diff."""
    source = (ROOT / mutant.path).read_bytes()
    old, new = (text.decode().splitlines() for text in (source, mutant.apply(source)))
    lines = difflib.unified_diff(old, new, lineterm="", n=2)
    return "\n".join(f"    {line}" for line in list(lines)[2:])


def _try_in_turn(
    mutants: Sequence[Mutant], tree: Path, lines: covered_lines.Record
) -> list[Outcome]:
    """Tries mutants one after another, and prints each with its fate."""
    outcomes = []
    for mutant in mutants:
        begun = time.monotonic()
        verdict, reason = fate = outcome(mutant, tree, lines)
        outcomes.append(fate)
        seconds = f"{time.monotonic() - begun:.0f} s"
        place = f"{mutant.path}:{mutant.lines[0]}"
        text = f"{place} {mutant.operator}: {verdict}, {seconds}: {reason}"
        if verdict in ("survived", "not covered"):
            text += f"\n  key {mutant.key}\n{_diff(mutant)}"
        print(text, flush=True)
    return outcomes


def _try_in_jobs(
    mutants: Sequence[Mutant], num_jobs: int, lines: covered_lines.Record
) -> list[Outcome]:
    """Tries mutants in some processes, forks of this one, and returns their fates."""
    with tempfile.TemporaryDirectory(prefix="mutants") as folder:
        trees = [copied_tree(Path(folder) / str(job)) for job in range(num_jobs)]
        import_frameworks()
        jobs = {}
        for job, tree in enumerate(trees):
            pid = os.fork()
            if pid == 0:
                try:
                    outcomes = _try_in_turn(mutants[job::num_jobs], tree, lines)
                    (tree.parent / "outcomes.json").write_text(json.dumps(outcomes))
                    os._exit(0)
                except BaseException:
                    traceback.print_exc()
                    os._exit(1)
            jobs[pid] = tree.parent
        statuses = [os.waitpid(pid, 0)[1] for pid in jobs]
        if any(statuses):
            sys.exit("A job failed.")
        return [
            Outcome(*fate)
            for parent in jobs.values()
            for fate in json.loads((parent / "outcomes.json").read_text())
        ]


def main() -> None:
    """Records tests, or tries mutants.

    Ends with 1 if a mutant lived or is not recorded.
    """
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--lines", type=Path, required=True, help="by test, a file")
    parser.add_argument("--record", nargs="+", metavar="TESTS", help="files, folders")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sample", type=int, default=300, help="number of mutants")
    parser.add_argument("--jobs", type=int, default=1, help="mutants at a time")
    parser.add_argument("--folder", nargs="+", default=FOLDERS, help="of the product")
    parser.add_argument("--key", nargs="+", default=[], help="only these mutants")
    flags = parser.parse_args()
    lines_file = flags.lines.absolute()
    if flags.record:
        record(lines_file, flags.record)
        return
    mutants = [
        mutant
        for mutant in sample(ROOT, flags.folder, flags.seed, flags.sample)
        if mutant.key in flags.key or not flags.key
    ]
    outcomes = _try_in_jobs(mutants, flags.jobs, covered_lines.read(lines_file))
    counts = collections.Counter(outcome.verdict for outcome in outcomes)
    hung = sum(outcome.reason == "the time limit" for outcome in outcomes)
    print(f"{dict(counts)}, of the caught {hung} by the time limit")
    if counts["not recorded"]:
        print("Files have changed since their tests were recorded: record them again.")
    sys.exit(counts["survived"] + counts["not recorded"] > 0)


if __name__ == "__main__":
    main()
