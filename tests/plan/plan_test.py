"""The tool that plans a registered model, by its command line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import model_registry
from lingvo_pipe.cli import runs
from lingvo_pipe.core.errors import UserTypeError
from lingvo_pipe.planner.resources.known_devices import parse_devices
from lingvo_pipe.planner.resources.resources import Constraints
from lingvo_pipe.tools.plan.plan import main
from lingvo_pipe.tools.plan.planned_model import PlannedModel, find_devices
from lingvo_pipe.training.optim.keras_optimizer import OptimizerParams
from tests.support.cases import exhaustive
from tests.support.errors import fails

TINY = "--model=lm.text.TransformerTiny"
DEVICES = find_devices(parse_devices("2xT4"))


def test_it_prints_a_table_and_flags_that_are_accepted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    change = "task.train.ema_decay : 0.5; task.pipeline.slices : auto"
    change = f"--model_params_override={change}"  # It is not printed beside the plan's.
    assert main([TINY, "--devices=2xTPUv3", "--batch=32", change]) == 0
    out = capsys.readouterr().out
    title = out.partition("\n")[0]
    assert re.search(r"^lm\.text\.TransformerTiny: 6 .*\b32 .*\b2 TPUv3$", title)
    assert re.search(r"^ *[\d.e-]+ m?s +[\d.,]+ +[\d.]+% .* gpipe ", out, re.M)
    assert re.search(r"^--devices=[12]$", out, re.M)
    match = re.search(r"^--model_params_override='(.*)'$", out, re.M)
    assert match is not None
    params = model_registry.GetParams("lm.text.TransformerTiny", "Train")
    params.FromText(match[1], separator=";")
    assert params.input.batch_size == 32
    assert params.task.train.ema_decay == 0.5
    assert params.task.pipeline.slices is None
    assert params.task.pipeline.num_replicas == 1
    assert params.task.pipeline.splits[-1] == 6


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["--model=lm.text.TransformerTin", "--devices=2xTPUv3"],
            r"'lm\.text\.TransformerTin'.*'lm\.text\.TransformerTiny'",
        ),
        ([TINY, "--devices=2xTPUv9"], "--devices.*'2xTPUv9'.*'TPUv"),
        ([TINY, "--devices=2x8xT4"], r"--network_gbits: .*\bT4\b.*--network_gbits=25"),
        ([TINY, "--devices=2xT4", "--network_gbits=2.5"], "--devices.*--network_gbits"),
        ([TINY, "--devices=2xgpu.json"], "gpu.json: .*teraflops.* no file"),
        ([TINY, "--devices=2xT4", "--price=0"], r"--price: .*positive.*\b0\b"),
        (
            [TINY, "--devices=2xTPUv3", "--num_stages=5"],
            r"--num_stages=5\b.*--num_stages \D*\b1\b.*\b2\b",
        ),
        exhaustive(
            [TINY, "--devices=2xTPUv3", "--num_replicas=2"],
            r"--num_replicas=2\b.*--num_replicas \D*\b1\b",
        ),
        (
            [TINY, "--devices=TPUv3", "--model_params_override=task.trainn : 1"],
            r"task\.trainn: .*'train'",
        ),
        (
            [
                *[TINY, "--devices=2xTPUv3", "--model_params_override"],
                "task.pipeline.schedule : gpipe;task.pipeline.num_replicas : 3",
            ],
            r"--model_params_override\b.* task\.pipeline\.schedule, "
            r"task\.pipeline\.num_replicas\b",
        ),
        exhaustive(
            ["--model=lm.giant.L103", "--devices=2xTPUv3", "--schedule=gpipe"],
            r"\b2 TPUv3\b.*recompute=.*\b8 TPUv3\b",
        ),
    ],
)
def test_problems_are_reported_in_a_line(arguments: list[str], words: str) -> None:
    with pytest.raises(SystemExit, match=f"^error: .*{words}") as error:
        main(arguments)
    assert "\n" not in error.value.args[0]


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("--schedule=1f1c", r"--schedule\b.*'1f1c'"),
        ("--recompute=sometimes", r"--recompute\b.*'sometimes'"),
        ("--batch=0", r"--batch\b.*\b1\b.*'0'"),
        ("--batch=1.5", r"--batch\b.*\b1\b.*'1\.5'"),
        ("--price=1,x", r"--price\b.*'1,x'"),
        ("--model_params_override=a : 1", "--model_params_override"),
        ("--num_stage=2", "--num_stage=2"),
    ],
)
def test_an_invalid_flag_is_refused_before_anything_is_traced(
    flag: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    override = "--model_params_override=input.batch_size : 8"
    model = "--model=image.digits.AmoebaNetDigits"
    with pytest.raises(SystemExit):
        main([model, "--devices=2xTPUv3", override, flag])
    *_, line = capsys.readouterr().err.splitlines()
    assert re.search(f"error: .*{words}", line)


def test_a_plan_changes_params_that_contradict_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It changes even the model's own."""
    params = model_registry.GetParams("lm.text.TransformerTiny", "Train")
    monkeypatch.setattr(model_registry, "GetParams", lambda name, dataset: params)
    assert PlannedModel("ours").changes() == []
    values: dict[str, Any] = {"micro_batch_size": 3, "num_batch_shards": 2}
    values |= {"cell_costs": [1] * 6, "devices": ["cpu:0"], "input_shapes": [(2, 8)]}
    params.task.pipeline.Set(**values, input_dtypes=[None])
    changes = PlannedModel("ours").changes()
    assert changes == [f"task.pipeline.{x} : None" for x in (*values, "input_dtypes")]
    params.task.pipeline.Set(num_micro_batches="auto", schedule="auto")
    planned = PlannedModel("ours")
    assert planned.plan(DEVICES, Constraints(num_devices=1)).fastest


@pytest.mark.parametrize(
    "override",
    [
        "task.train.ema_decay : 0.5\ntask.pipeline.num_replicas : 2",
        "task.pipeline.num_parts : 2",
        "# two\ntask.pipeline.schedule : gpipe",
    ],
)
def test_planned_params_are_refused_in_any_form(override: str) -> None:
    with fails(path="--model_params_override"):
        PlannedModel("lm.text.TransformerTiny", override)


def test_all_changes_are_printed_as_they_are() -> None:
    name, text = "lm.text.TransformerTiny", "task.train.init_from_checkpoint_names"
    assert PlannedModel(name, f"{text} : 'a=b;c=d'").all_changes() == (
        f"{text} : 'a=b;c=d'"
    )
    change: Any = {"task.train.optimizer": OptimizerParams("SGD", momentum=0.5)}
    params = model_registry.GetParams(name, "Train")
    params.FromText(PlannedModel(name, changes=change).all_changes(), separator=";")
    assert params.task.train.optimizer == change["task.train.optimizer"]


CHEAP: dict[str, Any] = {"num_stages": 1, "num_micro_batches": 1}


def _entries(text: str) -> list[str]:
    """Returns lines, and changes of params, which may be in another order."""
    return sorted(re.split(r"[;'\n] *", text))


def test_from_python_it_is_what_the_command_prints(
    capsys: pytest.CaptureFixture[str],
) -> None:
    steps: dict[str, Any] = {
        "task.train.max_steps": 3600,
        "task.train.learning_rate": 0.5,
    }
    tiny = TINY.removeprefix("--model=")
    plan = runs.plan(tiny, "2x80GB@312TFLOPS", 32, 1.5, num_stages=1, **steps)
    changes = "task.train.max_steps : 3600; task.train.learning_rate : 0.5"
    flags = ["--batch=32", "--price=1.5", "--num_stages=1"]
    override = f"--model_params_override={changes}"
    assert main([TINY, "--devices=2x80GB@312TFLOPS", *flags, override]) == 0
    shown = capsys.readouterr().out.strip()
    assert _entries(str(plan)) == _entries(shown)
    first, *_ = plan.rows
    assert [row["step_seconds"] for row in plan.rows] == sorted(
        row["step_seconds"] for row in plan.rows
    )
    assert first["num_stages"] == first["stages_per_device"] == 1
    assert first["examples_per_second"] == 32 / first["step_seconds"]
    hours = 1e6 / first["examples_per_second"] / 3600
    assert first["price"] == pytest.approx(hours * 1.5 * 2)
    prices = re.findall(r"^([\d.,e-]+) in ([\d.e-]+) hours for (.*)", shown, re.M)
    assert [name.split()[0] for *_, name in prices] == ["1,000,000", "3,600"]
    assert float(prices[0][0]) == pytest.approx(first["price"], rel=0.1)
    assert float(prices[1][1]) == pytest.approx(first["step_seconds"], rel=0.01)


def test_devices_of_several_kinds_have_their_own_prices(
    capsys: pytest.CaptureFixture[str],
) -> None:
    tiny = TINY.removeprefix("--model=")
    settings: dict[str, Any] = {"num_replicas": 1, "num_stages": 4}
    plan = runs.plan(tiny, "2xA100,2xT4", 32, [2, 0.5], **settings)
    first = plan.rows[0]
    assert first["kinds"] == ["A100-40GB"] * 2 + ["T4"] * 2
    assert 0 < first["bytes"] < first["usable_bytes"]
    hours = 1e6 / first["examples_per_second"] / 3600
    assert first["price"] == pytest.approx(hours * (2 * 2 + 2 * 0.5))
    flags = [f"--{name}={value}" for name, value in settings.items()]
    flags += ["--devices=2xA100,2xT4", "--batch=32"]
    assert main([TINY, *flags, "--price=2,0.5"]) == 0
    assert capsys.readouterr().out.strip() == str(plan)
    assert re.search(r"\b2 A100-40GB at 2 .*\b2 T4 at 0\.5 ", str(plan))
    assert re.search(r"^--devices=4$", str(plan), re.M)
    with pytest.raises(SystemExit, match=r"--price: .*\b2 kinds.*2\.0, 1\.0, 1"):
        main([TINY, *flags, "--price=2,1,1"])


def test_an_epochs_price_is_counted_where_its_examples_are_known() -> None:
    plan = runs.plan("image.keras_digits.KerasDigits", "H100", price=2, **CHEAP)
    assert re.search(r" hours for an epoch of [\d,]+ examples$", str(plan), re.M)
    assert "1,000,000" not in str(plan)


@pytest.mark.parametrize(
    ("arguments", "fields"),
    [
        ({"devices": "9x"}, {"path": "devices", "got": "9x"}),
        ({"devices": "2x4xL4"}, {"path": "network_gbits", "got": None}),
        (
            {"devices": "2x4xL4", "network_gbits": 0},
            {"path": "network_gbits", "got": 0},
        ),
        ({"price": -1}, {"path": "price", "got": -1}),
        ({"batch_size": 0}, {"path": "batch_size", "got": 0}),
        ({"devices": 2}, {"kind": UserTypeError, "path": "devices", "got": 2}),
        ({"price": "2"}, {"path": "price", "got": "2"}),
        ({"task.pipeline.schedule": "1f1b"}, {"path": "overrides"}),
        (
            {"task.pipeline.memory_limit": "12GB"},
            {"path": "task.pipeline.memory_limit"},
        ),
        (
            {"task.pipeline.memory_limit": float("inf")},
            {"path": "task.pipeline.memory_limit"},
        ),
        ({"batch_size": 8, "input.batch_size": 8}, {"path": "batch_size"}),
        (
            {"task.train.steps_per_loop": 2, "num_replicas": 2},
            {"path": "num_replicas", "got": 2},
        ),
        ({"model": 3, "batch_size": 8}, {"path": "model", "got": 3}),
        ({"schedule": "1f1c"}, {}),
    ],
)
def test_arguments_are_named(arguments: Any, fields: Any) -> None:
    with fails(**fields):
        runs.plan(**{"model": "lm.text.TransformerTiny", "devices": "L4", **arguments})


def test_models_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """They need no devices, which any plan needs."""
    assert main(["--list_models"]) == 0
    names = capsys.readouterr().out.splitlines()
    assert {"lm.text.TransformerTiny", "lm.giant.L103"} <= set(names)
    assert names == model_registry.ListModels()
    with pytest.raises(SystemExit):
        main([TINY])
    assert "--devices" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("suffix", "magic"), [("png", b"\x89PNG"), exhaustive("pdf", b"%PDF")]
)
def test_the_fastest_is_drawn(
    tmp_path: Path,
    suffix: str,
    magic: bytes,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its path is relative to the folder in which Bazel was called."""
    monkeypatch.chdir(".")  # Which the program changes.
    monkeypatch.setenv("BUILD_WORKING_DIRECTORY", str(tmp_path))
    name = f"timeline.{suffix}"
    assert main([TINY, "--devices=2xTPUv3", f"--picture={name}"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.endswith(f" {name}.")
    assert (tmp_path / name).read_bytes().startswith(magic)


@pytest.mark.exhaustive
def test_one_of_several_replicas_is_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "timeline.svg"
    asked = ["--devices=2xH100", "--batch=32", "--num_replicas=2", "--num_stages=1"]
    assert main([TINY, *asked, f"--picture={path}"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert re.search(rf"\b2 replicas\b.* {path}", last)
    assert path.read_text().startswith("<?xml")


@pytest.mark.parametrize("name", ["nowhere/timeline.png", "timeline.nonsense"])
def test_an_invalid_picture_path_is_reported_in_a_line(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is reported before anything is planned."""
    with pytest.raises(SystemExit, match="^error: --picture.*$"):
        main([TINY, "--devices=2xTPUv3", f"--picture={tmp_path / name}"])
    assert capsys.readouterr().out == ""
