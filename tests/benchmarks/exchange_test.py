"""Requests and reports pass through JSON; workers wait for their turns."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import tools.benchmarks
from tools.benchmarks.configuration import Configuration
from tools.benchmarks.exchange import Report, Request, merge, to_json
from tools.benchmarks.standard_configurations import standard_configurations

ROOT = Path(tools.benchmarks.__file__).parents[2]
WAITS = """
from tools.benchmarks.exchange import Turns
Turns().wait()
print('resumes')
"""


def test_a_worker_ends_with_the_process_that_measures() -> None:
    run = subprocess.run(
        [sys.executable, "-c", WAITS],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 1
    assert run.stdout == "ready\n"
    assert "resumes" not in run.stderr


def test_printed_lines_are_no_answers() -> None:
    run = subprocess.run(
        [sys.executable, "-c", WAITS],
        cwd=ROOT,
        input="\n",
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0
    assert run.stdout == "ready\n"
    assert run.stderr == "resumes\n"


@pytest.mark.parametrize(
    "configuration", sum(standard_configurations(2), []), ids=lambda c: c.name
)
def test_requests_pass_through_json(configuration: Configuration) -> None:
    request = Request(configuration, num_steps=3, with_peak=True, cores=(0, 2))
    assert Request.from_json(to_json(request)) == request


def test_the_slowest_process_counts() -> None:
    reports = [
        Report(3.0, [1.0, 5.0], [10], None, 0.25),
        Report(2.0, [4.0, 2.0], [20], 0.5, 0.5),
    ]
    assert merge(reports) == Report(3.0, [4.0, 5.0], [10, 20], 0.5, 0.75)


def test_a_single_report_is_the_pipelines() -> None:
    report = Report(3.0, [1.0, 5.0], [10, 20], 0.5, 0.25, [0.125], 64, [65, 66])
    assert Report(**json.loads(to_json(report))) == report
    assert merge([report]) == report
