"""The layout rules that CONTRIBUTING.md states."""

import os
import subprocess
import sys
from pathlib import Path

# Under Bazel this file is a link into the source tree.
ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ["lingvo_pipe", "model_registry", "params", "tests", "tools"]

MAX_LINES = 350
# Path -> why the file may be longer.
LONGER_FILES: dict[str, str] = {}

# Usable, and quick to import, without TensorFlow.
PURE_MODULES = [
    "lingvo_pipe/__init__.py",
    "lingvo_pipe/errors_as_lines.py",
    "lingvo_pipe/failures/asked_to_end.py",
    "lingvo_pipe/failures/death_signal.py",
    "lingvo_pipe/failures/free_memory.py",
    "lingvo_pipe/failures/lost_workers.py",
    "lingvo_pipe/failures/progress.py",
    "lingvo_pipe/failures/restarts.py",
    "lingvo_pipe/failures/worker_answers.py",
    "lingvo_pipe/fault_line.py",
    "lingvo_pipe/hyperparams/*.py",
    "lingvo_pipe/input/example_order.py",
    "lingvo_pipe/input/text/batch_plan.py",
    "lingvo_pipe/input/text/documents.py",
    "lingvo_pipe/input/text/sentence_pairs.py",
    "lingvo_pipe/input/text/text_file_pairs.py",
    "lingvo_pipe/input/text/token_stream.py",
    "lingvo_pipe/nested_map.py",
    "lingvo_pipe/quiet_startup.py",
    "lingvo_pipe/trainer.py",
    "lingvo_pipe/tree.py",
    "lingvo_pipe/version.py",
    "lingvo_pipe/models/amoebanet/genotype.py",
    "lingvo_pipe/pipeline/devices/cluster_source.py",
    "lingvo_pipe/pipeline/devices/cluster_spec.py",
    "lingvo_pipe/pipeline/devices/device_choice.py",
    "lingvo_pipe/pipeline/devices/device_names.py",
    "lingvo_pipe/pipeline/devices/interfaces.py",
    "lingvo_pipe/pipeline/devices/membership.py",
    "lingvo_pipe/pipeline/devices/own_addresses.py",
    "lingvo_pipe/pipeline/devices/own_port.py",
    "lingvo_pipe/pipeline/devices/packet_filter.py",
    "lingvo_pipe/pipeline/devices/socket_fence.py",
    "lingvo_pipe/pipeline/devices/tf_config.py",
    "lingvo_pipe/pipeline/devices/trainers_end.py",
    "lingvo_pipe/pipeline/devices/worker_description.py",
    "lingvo_pipe/pipeline/loops/dataflow.py",
    "lingvo_pipe/pipeline/schedules/*.py",
    "lingvo_pipe/pipeline/simulation/*.py",
    "lingvo_pipe/pipeline/splitting/allowed_stages.py",
    "lingvo_pipe/pipeline/splitting/balance.py",
    "lingvo_pipe/pipeline/splitting/cell_seconds.py",
    "lingvo_pipe/pipeline/splitting/exact_amounts.py",
    "lingvo_pipe/pipeline/splitting/partition.py",
    "lingvo_pipe/pipeline/stage_memory.py",
    "lingvo_pipe/planner/advice.py",
    "lingvo_pipe/planner/amounts.py",
    "lingvo_pipe/planner/busy_devices.py",
    "lingvo_pipe/planner/candidate.py",
    "lingvo_pipe/planner/counted_seconds.py",
    "lingvo_pipe/planner/company.py",
    "lingvo_pipe/planner/constraints.py",
    "lingvo_pipe/planner/device_model.py",
    "lingvo_pipe/planner/device_needs.py",
    "lingvo_pipe/planner/evaluation.py",
    "lingvo_pipe/planner/fitting_ends.py",
    "lingvo_pipe/planner/model_costs.py",
    "lingvo_pipe/planner/plan_report.py",
    "lingvo_pipe/planner/planning.py",
    "lingvo_pipe/planner/resources.py",
    "lingvo_pipe/planner/search.py",
    "lingvo_pipe/planner/time_parts.py",
    "lingvo_pipe/training/histograms.py",
    "lingvo_pipe/training/report/axis.py",
    "lingvo_pipe/training/report/curves.py",
    "lingvo_pipe/training/report/elements.py",
    "lingvo_pipe/training/report/sections.py",
    "lingvo_pipe/training/report/series.py",
    "lingvo_pipe/training/report/style.py",
    "lingvo_pipe/training/stage_utilisation.py",
    "lingvo_pipe/training/step_profile.py",
    "lingvo_pipe/watch_flags.py",
    "model_registry/*.py",
    "tools/local_cluster/*.py",
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
        for package in PACKAGES
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
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert found.stdout == ""


def test_tests_shadow_no_package() -> None:
    assert _files("tests/*.py") == ["tests/conftest.py"]
    assert not _files("tests/**/__init__.py")
    assert not [name for name in PACKAGES if (ROOT / "tests" / name).exists()]
    assert not _files("*.py")
