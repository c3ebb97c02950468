"""The report at the end of `.ci/run`: the budget that it holds, the table it writes."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

from tests.style.builds import ROOT

PAGE = """The budget is 1,000 CPU seconds.

| Program | Shards | Longest shard, s | CPU, s |
|---|---|---|---|
| all | 0 | | 0 |

More.
"""
FAILURE = "<testcase><failure/></testcase>"
CASES = "<testsuite><testcase/><testcase><skipped/></testcase>{}</testsuite>"


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, with a page of its own."""
    spec = importlib.util.spec_from_file_location("report", ROOT / ".ci/report.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "README", tmp_path / "README.md")
    module.README.write_text(PAGE)
    return module


class Events:
    """A folder with what Bazel writes of a run."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.lines = folder, list[str]()
        self.path = str(folder / "events.json")

    def add(self, shard: int, log: str, failures: int = 0, attempt: int = 1) -> None:
        """Adds one attempt of a shard."""
        files = {"test.log": log, "test.xml": CASES.format(FAILURE * failures)}
        outputs = []
        for name, text in files.items():
            file = self.folder / f"{shard}.{attempt}.{name}"
            file.write_text(text)
            outputs.append({"name": name, "uri": file.as_uri()})
        identity = {"label": "//a:b_test", "run": 1, "shard": shard, "attempt": attempt}
        result = {
            "status": "FAILED" if failures else "PASSED",
            "testAttemptDurationMillis": "2000",
            "testActionOutput": outputs,
        }
        self.lines.append(
            json.dumps({"id": {"testResult": identity}, "testResult": result})
        )
        Path(self.path).write_text("\n".join(self.lines))


@pytest.fixture
def events(tmp_path: Path) -> Events:
    return Events(tmp_path)


@pytest.mark.parametrize(("seconds", "code"), [(1100.0, 0), (1100.5, 1)])
def test_a_tenth_above_the_budget_is_too_much(
    report: ModuleType, events: Events, seconds: float, code: int
) -> None:
    events.add(1, "CPU seconds: 500.0\n")
    events.add(2, f"...\nCPU seconds: {seconds - 500}\n")
    assert report.main(events.path, 0) == code
    assert report.README.read_text() == PAGE


def test_the_last_attempt_of_a_shard_counts(
    report: ModuleType, events: Events, capsys: pytest.CaptureFixture[str]
) -> None:
    events.add(1, "CPU seconds: 2000.0\n", failures=1)
    events.add(1, "CPU seconds: 7.0\n", attempt=2)
    assert report.main(events.path, 0, "--write") == 0
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "1 skipped",
        "1 passed, 0 failed",
    ]
    before, after = PAGE.split("| all | 0 | | 0 |")
    rows = "| `a:b_test` | 1 | 2 | 7 |\n| all | 1 | | 7 |"
    assert report.README.read_text() == f"{before}{rows}{after}"


def test_a_program_that_does_not_say_what_it_took_is_named(
    report: ModuleType, events: Events, capsys: pytest.CaptureFixture[str]
) -> None:
    events.add(1, "CPU seconds: 7.0\n")
    events.add(2, "no such line\n")
    assert report.main(events.path, 0) == 1
    assert "a:b_test" in capsys.readouterr().out


def test_a_run_that_failed_writes_no_table(report: ModuleType, events: Events) -> None:
    events.add(1, "CPU seconds: 7.0\n", failures=1)
    assert report.main(events.path, 3, "--write") == 0  # Bazel's status says it.
    assert report.README.read_text() == PAGE
