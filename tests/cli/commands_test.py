"""Commands: each runs its module as `python -m` does; help needs no TensorFlow."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import lingvo_pipe
from lingvo_pipe.tools.commands import COMMANDS, main, usage

ROOT = Path(lingvo_pipe.__file__).parents[1]


@pytest.mark.parametrize("module", [module for module, _ in COMMANDS.values()])
def test_each_command_is_a_program(module: str) -> None:
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    assert 'if __name__ == "__main__":' in Path(spec.origin).read_text("utf-8")


def test_the_help_has_a_line_for_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert re.findall(r"^  (\w+)  +\w", shown, re.MULTILINE) == list(COMMANDS)
    assert main([]) == 2
    assert capsys.readouterr().out == shown
    assert max(map(len, usage().splitlines())) < 88


def test_an_unknown_command_names_near_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chekpoint", "list"]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert "'chekpoint'" in output.err
    assert "'checkpoints'" in output.err


def _run(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(ROOT), "BUILD_WORKING_DIRECTORY": "."},
        cwd=folder,
        capture_output=True,
        text=True,
    )


def test_the_help_imports_no_tensorflow_and_no_numpy(tmp_path: Path) -> None:
    code = (
        "import sys; from lingvo_pipe.tools import commands; commands.main(['-h']); "
        "print({'absl', 'keras', 'numpy', 'tensorflow'} & set(sys.modules))"
    )
    assert _run(code, tmp_path).stdout.splitlines()[-1] == "set()"


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_imports_no_tensorflow(tmp_path: Path, name: str) -> None:
    code = (
        "import atexit, sys; from lingvo_pipe.tools import commands; "
        "atexit.register(lambda: print('tensorflow' in sys.modules)); "
        f"sys.argv = ['lingvo_pipe', '{name}', '--help']; commands.run()"
    )
    result = _run(code, tmp_path)
    assert result.returncode == 0
    assert "usage: " in result.stdout or "flags:" in result.stdout
    assert result.stdout.splitlines()[-1] == "False"


@pytest.mark.parametrize("name", ["image.digits.AmoebaNetDigit", "AmoebaNetDigits"])
def test_an_unknown_model_is_refused_without_tensorflow(
    tmp_path: Path, name: str
) -> None:
    code = (
        "import atexit, sys; from lingvo_pipe.tools import commands; "
        "atexit.register(lambda: print('tensorflow' in sys.modules)); sys.argv = "
        f"['lingvo_pipe', 'train', '--model={name}', '--logdir=a']; commands.run()"
    )
    result = _run(code, tmp_path)
    assert result.returncode == 1
    assert "'image.digits.AmoebaNetDigits'" in result.stderr
    assert result.stdout.splitlines()[-1] == "False"
    assert not list(tmp_path.iterdir())


def test_a_command_gets_its_flags_and_gives_its_exit_code(tmp_path: Path) -> None:
    """In the user's folder, whose modules it can import."""
    module = (
        "import sys; print(sys.argv[1:]); import own; __name__ == '__main__' or 1/0"
    )
    (tmp_path / "program.py").write_text(module)
    (tmp_path / "own.py").write_text("raise SystemExit(7)")
    code = (
        "import sys; sys.path[:] = sys.path[1:]; sys.argv = ['x', 'own', '--a', 'b']; "
        "from lingvo_pipe.tools import commands; "
        "commands.COMMANDS['own'] = ('program', ''); commands.run()"
    )
    result = _run(code, tmp_path)
    assert (result.stdout, result.returncode) == ("['--a', 'b']\n", 7), result.stderr


def test_the_trainer_is_a_command(tmp_path: Path) -> None:
    """A wrong flag ends it before TensorFlow is imported."""
    code = (
        "import sys; sys.argv = ['lingvo_pipe', 'train', '--modle=a']; "
        "from lingvo_pipe.tools.commands import run; run()"
    )
    result = _run(code, tmp_path)
    assert result.returncode == 1
    assert "error: Unknown command line flag 'modle'" in result.stderr
