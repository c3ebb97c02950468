"""Prints how many tests passed and failed in a run of Bazel, and their CPU time.

Usage: report.py EVENTS STATUS [--write], with the file that --build_event_json_file
wrote and Bazel's exit status. Ends with 1 if the tests took more than 1.1 times the
budget of tests/README.md, or if one did not say what it took. With --write, the table
of times there is the run's, if nothing failed.
"""

import json
import re
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlparse

README = Path(__file__).parents[1] / "tests" / "README.md"
_BUDGET = re.compile(r"budget is ([\d,]+) CPU seconds")
# What tools/run_pytest.py prints at the end.
_CPU_SECONDS = re.compile(r"^CPU seconds: ([\d.]+)$", re.MULTILINE)
_TABLE = re.compile(r"(?<=\n)\| Program \|.*?\n(?=\n)", re.DOTALL)
_TOLERANCE = 1.1


class Shard(NamedTuple):
    """One process of a test program: its program, clock and CPU seconds, outcomes."""

    program: str
    seconds: float
    cpu_seconds: float | None  # None if it printed none.
    counts: Counter


def _shard(program: str, result: dict) -> Shard:
    """Reads the files that a shard has left."""
    counts: Counter = Counter()
    cpu_seconds = None
    for output in result.get("testActionOutput", []):
        path = Path(unquote(urlparse(output["uri"]).path))
        if output["name"] == "test.xml":
            counts = Counter(_outcomes(path))
        elif output["name"] == "test.log":
            printed = _CPU_SECONDS.findall(path.read_text(errors="replace"))
            cpu_seconds = float(printed[-1]) if printed else None
    if result["status"] != "PASSED" and not counts["failed"]:
        counts["failed"] += 1  # such as a timeout, or no test collected
    milliseconds = int(result.get("testAttemptDurationMillis", 0))
    return Shard(program, milliseconds / 1e3, cpu_seconds, counts)


def _outcomes(path: Path) -> Iterator[str]:
    """Yields the outcome of each test in a file of JUnit's form."""
    for case in ElementTree.parse(path).iter("testcase"):
        tags = {child.tag for child in case}
        if tags & {"failure", "error"}:
            yield "failed"
        else:
            yield "skipped" if "skipped" in tags else "passed"


def _shards(events_path: str) -> list[Shard]:
    """Returns the shards of a run, each by its last attempt."""
    results = {}
    for line in Path(events_path).read_text(encoding="utf-8").splitlines():
        event = json.loads(line)
        if "testResult" in event:
            identity = event["id"]["testResult"]
            key = identity["label"], identity.get("run"), identity.get("shard")
            results[key] = event["testResult"]
    return [_shard(label.lstrip("/"), x) for (label, _, _), x in results.items()]


def _table(shards: list[Shard]) -> str:
    """Returns the table of tests/README.md."""
    rows = []
    for program in {shard.program for shard in shards}:
        of_program = [shard for shard in shards if shard.program == program]
        longest = max(shard.seconds for shard in of_program)
        cpu_seconds = sum(shard.cpu_seconds or 0.0 for shard in of_program)
        rows.append((cpu_seconds, f"`{program}`", len(of_program), longest))
    lines = [
        "| Program | Shards | Longest shard, s | CPU, s |",
        "|---|---|---|---|",
        *(
            f"| {name} | {n} | {s:.0f} | {cpu:.0f} |"
            for cpu, name, n, s in sorted(rows)[::-1]
        ),
        f"| all | {len(shards)} | | {sum(row[0] for row in rows):.0f} |",
    ]
    return "\n".join(lines) + "\n"


def main(events_path: str, status: int, *options: str) -> int:
    """Prints the counts, of which none failed only where the status is 0."""
    shards = _shards(events_path)
    counts = sum((shard.counts for shard in shards), Counter())
    if status and not counts["failed"]:
        counts["failed"] = 1  # the build itself
    page = README.read_text(encoding="utf-8")
    budget = int(_BUDGET.findall(page)[0].replace(",", ""))
    cpu_seconds = sum(shard.cpu_seconds or 0.0 for shard in shards)
    uncounted = [x.program for x in shards if x.cpu_seconds is None]
    print(f"{cpu_seconds:,.0f} CPU seconds, of a budget of {budget:,}")
    is_over = cpu_seconds > _TOLERANCE * budget
    if is_over:
        print("Make tests cheaper, or leave some to the exhaustive suite.")
    if uncounted:
        print(f"CPU seconds are not known of {', '.join(uncounted)}")
    if "--write" in options and status == 0 and shards:
        README.write_text(_TABLE.sub(_table(shards), page), encoding="utf-8")
    if counts["skipped"]:
        print(f"{counts['skipped']} skipped")
    print(f"{counts['passed']} passed, {counts['failed']} failed")
    return int(is_over or bool(uncounted and not status))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:]))
