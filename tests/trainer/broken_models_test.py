"""An error in a user's model is told in a line, with the user's lines of code."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.support.command_line import CommandLine, messages

HERE = Path(__file__).parent

# Name of the run -> its flags but for --logdir.
RUNS = {
    "import": ["--model=mine.unimportable.X"],
    "operation": ["--model=mine.broken_models.Operation"],
    "python": ["--model=mine.broken_models.Python"],
    "list": ["--model=mine.broken_models.List"],
    "logarithm": ["--model=mine.broken_models.Logarithm"],
    "task": ["--model=mine.broken_models.Task"],
    "traceback": ["--model=mine.broken_models.Python", "--traceback"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("broken")
    (folder / "mine").mkdir()
    shutil.copy(HERE / "broken_models.py", folder / "mine")
    (folder / "mine" / "unimportable.py").write_text("import no_such_package\n")
    return folder


@pytest.fixture(scope="module")
def told(folder: Path) -> dict[str, tuple[int, list[str], list[str]]]:
    """Exit code and the lines of standard output and error of each run."""
    command_lines = [[*flags, f"--logdir={name}"] for name, flags in RUNS.items()]
    outcomes = CommandLine(folder).run_trainers(command_lines)
    return {
        name: (code, output.splitlines(), messages(errors))
        for name, (code, output, errors) in zip(RUNS, outcomes, strict=True)
    }


def _is_at(folder: Path, line: str, function: str) -> bool:
    file = folder / "mine" / "broken_models.py"
    pattern = rf'  File "{re.escape(str(file))}", line \d+, in {function}'
    return re.fullmatch(pattern, line) is not None


def test_a_module_that_can_not_be_imported(folder: Path, told: dict) -> None:
    code, output, (first, place, line, more) = told["import"]
    assert (code, output) == (1, [])
    assert first == "error: ModuleNotFoundError: No module named 'no_such_package'"
    assert place.endswith('/mine/unimportable.py", line 1, in <module>')
    assert line == "    import no_such_package"
    assert "--traceback" in more
    assert not (folder / "import").exists()


def test_an_operation_that_fails(folder: Path, told: dict) -> None:
    code, _, lines = told["operation"]
    assert code == 1
    assert len(lines) == 6
    assert re.match(
        r"error: InvalidArgumentError: .*task/pipeline/cells_1\b.*\(stage 0\)"
        r".*micro-batch 0\b.*\[far too large\]"
        r".*\bcells_1/assert_less/Assert/AssertGuard/Assert\b",
        lines[0],
    )
    assert _is_at(folder, lines[1], "FProp")
    assert "tf.debugging.assert_less(tf.reduce_max(x)" in lines[2]
    assert "operation/traceback.txt" in lines[5]
    text = (folder / "operation" / "traceback.txt").read_text()
    assert "lingvo_pipe/pipeline/debug/diagnosis.py" in text


def test_an_error_in_fprop(folder: Path, told: dict) -> None:
    code, output, lines = told["python"]
    assert (code, output) == (1, [])
    assert len(lines) == 6
    assert re.match(
        r"error: ValueError: FProp\b.*\bPythonLayer\b.*task/pipeline/cells_1\b"
        r".*\(stage 0\).*float32 \(4, 1\): .*\b1 and 7\b",
        lines[0],
    )
    assert _is_at(folder, lines[1], "FProp")
    assert lines[2] == "    return _multiplied(x)"
    assert _is_at(folder, lines[3], "_multiplied")
    assert "--traceback" in lines[5]


def test_a_mistake_that_a_check_finds(folder: Path, told: dict) -> None:
    """Its text says all, and the line of the user's that made it is shown."""
    code, _, lines = told["list"]
    assert code == 1
    assert re.match(r"error: task/pipeline/cells_1/w\b.*\bWeightParams\b", lines[0])
    assert _is_at(folder, lines[1], "__init__")
    assert lines[2:] == ['    self.CreateVariable("w", shape)']
    code, _, lines = told["task"]
    assert code == 1
    assert re.match("error: .*'pipline'.*'pipeline'", lines[0])
    assert _is_at(folder, lines[1], "Task")
    assert len(lines) == 3


def test_a_loss_that_is_no_number(told: dict) -> None:
    code, _, (line,) = told["logarithm"]
    assert code == 1
    assert re.match(
        r"error: .*step 1\b.*\bnan\b.*task/pipeline/cells_1\b.*\(stage 0\)"
        r".*micro-batch 0\b.*\bnan\b.*\b4 of 4\b.*learning_rate",
        line,
    )


def test_the_whole_traceback_is_shown_if_asked_for(told: dict) -> None:
    _, _, lines = told["traceback"]
    assert lines[0] == "Traceback (most recent call last):"
    assert len(lines) > 50
