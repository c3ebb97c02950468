"""The layout rules that CONTRIBUTING.md states."""

import os
import subprocess
import sys

from tests.style.builds import FOLDERS, ROOT

MAX_LINES = 350
# Path -> why the file may be longer.
LONGER_FILES: dict[str, str] = {}

# Usable, and quick to import, without TensorFlow.
PURE_MODULES = [
    "lingvo_pipe/__init__.py",
    "lingvo_pipe/cli/error_output.py",
    "lingvo_pipe/core/signals.py",
    "lingvo_pipe/fault_tolerance/restarts.py",
    "lingvo_pipe/fault_tolerance/free_memory.py",
    "lingvo_pipe/fault_tolerance/worker_status.py",
    "lingvo_pipe/core/activity.py",
    "lingvo_pipe/core/errors.py",
    "lingvo_pipe/core/lazy_names.py",
    "lingvo_pipe/hyperparams/*.py",
    "lingvo_pipe/input/example_order.py",
    "lingvo_pipe/input/text/batch_plan.py",
    "lingvo_pipe/input/text/text_files.py",
    "lingvo_pipe/input/text/sentence_pairs.py",
    "lingvo_pipe/input/text/text_file_pairs.py",
    "lingvo_pipe/input/text/token_stream.py",
    "lingvo_pipe/nested_map.py",
    "lingvo_pipe/core/tensorflow_startup.py",
    "lingvo_pipe/trainer.py",
    "lingvo_pipe/core/trees.py",
    "lingvo_pipe/version.py",
    "lingvo_pipe/models/amoebanet/genotype.py",
    "lingvo_pipe/pipeline/devices/cluster_spec.py",
    "lingvo_pipe/pipeline/devices/device_choice.py",
    "lingvo_pipe/pipeline/devices/device_names.py",
    "lingvo_pipe/pipeline/devices/own_addresses.py",
    "lingvo_pipe/pipeline/devices/scheduler_environment/membership.py",
    "lingvo_pipe/pipeline/devices/listener_restriction.py",
    "lingvo_pipe/pipeline/devices/scheduler_environment/tf_config.py",
    "lingvo_pipe/pipeline/devices/trainer_liveness.py",
    "lingvo_pipe/pipeline/loops/dataflow.py",
    "lingvo_pipe/pipeline/schedules/*.py",
    "lingvo_pipe/pipeline/simulation/*.py",
    "lingvo_pipe/pipeline/splitting/allowed_stages.py",
    "lingvo_pipe/pipeline/splitting/balance.py",
    "lingvo_pipe/pipeline/splitting/cell_costs.py",
    "lingvo_pipe/pipeline/splitting/partitioning.py",
    "lingvo_pipe/pipeline/memory/stage_memory.py",
    "lingvo_pipe/core/tables.py",
    "lingvo_pipe/planner/costs/device_needs.py",
    "lingvo_pipe/planner/costs/flops_time_model.py",
    "lingvo_pipe/planner/costs/model_costs.py",
    "lingvo_pipe/planner/resources/*.py",
    "lingvo_pipe/planner/search/*.py",
    "lingvo_pipe/core/quantities.py",
    "lingvo_pipe/training/report/axis.py",
    "lingvo_pipe/training/report/curves.py",
    "lingvo_pipe/training/report/series.py",
    "lingvo_pipe/training/run/progress.py",
    "lingvo_pipe/training/profiling/step_profile.py",
    "lingvo_pipe/cli/cluster_flags.py",
    "lingvo_pipe/cli/flag_checks.py",
    "lingvo_pipe/cli/flags.py",
    "lingvo_pipe/cli/main.py",
    "model_registry/*.py",
    "lingvo_pipe/tools/local_cluster/*.py",
]

# Prints the first module with which a framework comes, and the framework.
_FIND_FRAMEWORK = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
    if found := {"keras", "tensorflow", "tensorflow_datasets"} & set(sys.modules):
        print(name, *sorted(found))
        break
"""


def _files(pattern: str) -> list[str]:
    return sorted(str(path.relative_to(ROOT)) for path in ROOT.glob(pattern))


def _module(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def test_files_are_short() -> None:
    num_lines = {
        file: len((ROOT / file).read_text(encoding="utf-8").splitlines())
        for package in FOLDERS
        for file in _files(f"{package}/**/*.py")
    }
    too_long = {file for file, lines in num_lines.items() if lines > MAX_LINES}
    assert too_long == set(LONGER_FILES)


def test_pure_modules_import_no_tensorflow() -> None:
    files = {pattern: _files(pattern) for pattern in PURE_MODULES}
    assert all(files.values()), "each pattern matches a file"
    modules = [_module(file) for found in files.values() for file in found]
    found = subprocess.run(
        [sys.executable, "-B", "-c", _FIND_FRAMEWORK, *modules],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert found.stdout == ""


def test_tests_shadow_no_package() -> None:
    assert _files("tests/*.py") == ["tests/conftest.py"]
    assert not _files("tests/**/__init__.py")
    assert not [name for name in FOLDERS if (ROOT / "tests" / name).exists()]
    assert not _files("*.py")
