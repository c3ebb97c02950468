"""TensorFlow's reports on its start are hidden; errors are not."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

import lingvo_pipe
from lingvo_pipe.core import tensorflow_startup

ROOT = Path(lingvo_pipe.__file__).parents[1]
CHATTER = [
    "WARNING: All log messages before absl::InitializeLog() is called are written",
    "I0000 00:00:1.2 1 cpu_feature_guard.cc:227] This TensorFlow binary is optimized",
    "To enable the following instructions: AVX2, in other operations, rebuild",
    "W0000 00:00:1.2 1 gpu_device.cc:2344] Cannot dlopen some GPU libraries.",
    "E0000 00:00:1.2 1 cuda_fft.cc:485] Unable to register cuFFT factory: Attempting",
    "2026-01-01 00:00:00.1: E xla/cuda_fft.cc:485] Unable to register cuFFT factory",
]
NO_GPU = "E0000 00:00:1.2 1 cuda_platform.cc:52] failed call to cuInit: (303)"
PROBLEM = "E0000 00:00:1.2 1 loader.cc:1] cannot read the model"
OLD_PROBLEM = "2026-01-01 00:00:00.1: F tensorflow/x.cc:1] cannot read the model"


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(tensorflow_startup, "NVIDIA", "/nonexistent")


def _start(*lines: str) -> None:
    with tensorflow_startup.quiet_startup():
        os.write(2, "".join(f"{line}\n" for line in lines).encode())


def test_reports_are_hidden_and_errors_are_not(
    capfd: pytest.CaptureFixture[str],
) -> None:
    _start(*CHATTER, PROBLEM, NO_GPU, OLD_PROBLEM)
    assert capfd.readouterr().err == f"{PROBLEM}\n{OLD_PROBLEM}\n"
    _start(*CHATTER, PROBLEM)  # The level is now set, by the first call.
    assert capfd.readouterr().err == f"{PROBLEM}\n"


def test_a_gpu_that_does_not_start_is_an_error_if_it_is_wanted(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tensorflow_startup, "NVIDIA", os.devnull)
    _start(*CHATTER, NO_GPU)
    assert capfd.readouterr().err == f"{NO_GPU}\n"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    _start(*CHATTER, NO_GPU)
    assert capfd.readouterr().err == ""


def test_all_is_shown_with_an_exception(capfd: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        with tensorflow_startup.quiet_startup():
            os.write(2, CHATTER[0].encode())
            raise ImportError

    with pytest.raises(ImportError):
        fail()
    assert capfd.readouterr().err == CHATTER[0]


def test_all_is_shown_at_a_low_level(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "0")
    _start(CHATTER[0])
    assert capfd.readouterr().err == f"{CHATTER[0]}\n"


def test_a_session_that_imports_lingvo_pipe_is_quiet() -> None:
    code = (
        "import lingvo_pipe as lp; lp.layers.FCLayer; "
        "print(*lp.initialize_devices(2)); import tensorflow as tf; tf.constant(1) + 1"
    )
    unset = ("TF_CPP_MIN_LOG_LEVEL", "CUDA_VISIBLE_DEVICES")
    environment = {k: v for k, v in os.environ.items() if k not in unset}
    session = subprocess.run(
        [sys.executable, "-c", code],
        env=environment | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert session.returncode == 0, session.stderr
    assert len(session.stdout.split()) == 2
    assert session.stderr == ""


def test_garbage_is_collected_seldom_while_tensorflow_is_imported() -> None:
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    try:
        with tensorflow_startup.importing_tensorflow():
            assert gc.get_threshold() > (700, 10, 10)
        assert gc.get_threshold() == (700, 10, 10)
    finally:
        gc.set_threshold(*before)


# Writes a line at once to standard error, whose reader may be gone.
WRITES = """
import io, threading
from lingvo_pipe.core import tensorflow_startup

was_tried = threading.Event()

class Stream(io.FileIO):
    def write(self, text):
        was_tried.set()
        return super().write(text)

io.FileIO = Stream
activity = tensorflow_startup.activity
tensorflow_startup.activity = lambda name, stream, file_delay: activity(name, stream, 0)
with tensorflow_startup.importing_tensorflow():
    assert was_tried.wait(300)
print("done")
"""


def test_a_reader_that_is_gone_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-c", WRITES]
    run = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=writing)
    os.close(writing)
    assert (run.returncode, run.stdout) == (0, b"done\n")


def test_without_standard_error_nothing_is_hidden(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    with tensorflow_startup.quiet_startup():
        pass


def test_later_processes_of_the_user_have_their_own_level(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    with tensorflow_startup.quiet_startup():
        assert os.environ["TF_CPP_MIN_LOG_LEVEL"] == "2"
    assert "TF_CPP_MIN_LOG_LEVEL" not in os.environ
