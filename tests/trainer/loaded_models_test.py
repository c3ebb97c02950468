"""A trained model is loaded in a Python program, and used on one's own images."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from lingvo_pipe.input.prepared_dataset import prepared_builder
from lingvo_pipe.training.run.metrics_log import read_metrics
from tests.docs.pages import page, python_blocks
from tests.support.cases import exhaustive
from tests.support.command_line import SMALL, CommandLine, write_small_model

_CLASSIFY = """
import json
import numpy as np
import tensorflow as tf
import lingvo_pipe as lp
from lingvo_pipe.input.prepared_dataset import prepared_builder

examples = prepared_builder("optdigits").as_data_source("test")
images = [each["image"] for each in examples]
model = lp.load("run", "ckpt-00000003", model="mine.small_model.Small")
assert (model.name, model.step) == ("mine.small_model.Small", 3)
found = model.classify(images)
right = [x.label == each["label"] for x, each in zip(found, examples, strict=True)]

files = [f"{i}.png" for i in range(3)]
for file, image in zip(files, images):
    tf.io.write_file(file, tf.io.encode_png(image))
for a, b in zip(model.classify(files), found):
    assert (a.label, a.name) == (b.label, str(b.label))
    assert a.label == b.probabilities.argmax()
    np.testing.assert_allclose(a.probabilities, b.probabilities, rtol=1e-5)

tf.io.write_file("text.png", "text")
wrong = [images[0] * 100], [images[0][1:]], ["none.png"], ["text.png"]
wrong += "0.png", images[0]
errors = []
for call, given in [(model.translate, ["ab"]), *((model.classify, x) for x in wrong)]:
    try:
        call(given)
    except (TypeError, ValueError) as error:
        errors.append(f"{type(error).__mro__[2].__name__}: {error}")
print(json.dumps([np.mean(right), errors, found[0].name]))
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run `run`, in which two params differ from their class's."""
    folder = tmp_path_factory.mktemp("trained")
    write_small_model(folder)
    overrides = "task.pipeline.cell_tpl[3].keep_prob : 0.5; input.batch_size : 32"
    CommandLine(folder).train(
        SMALL, "--logdir=run", f"--model_params_override={overrides}"
    )
    return folder


def test_images_are_classified_as_in_the_evaluation(
    trained: Path, tmp_path: Path
) -> None:
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    *_, (_, of_page), _ = python_blocks(page("images"))
    for old, new in (('"/tmp/digits"', '"run"'), ('"seven.png"', '"0.png"')):
        assert of_page.count(old) == 1
        of_page = of_page.replace(old, new)
    run = CommandLine(tmp_path).run("-c", _CLASSIFY + of_page)
    assert run[0] == 0, run
    *_, results, of_page = run[1].splitlines()
    accuracy, errors, first = json.loads(results)
    assert of_page.split()[0] == first
    *_, test = read_metrics(tmp_path / "run")
    assert accuracy == pytest.approx(test["accuracy"], abs=1e-6)
    kind, bright, shape, missing, text, single, array = errors
    assert kind.startswith("TypeError: translate: ")
    assert kind.endswith("Use classify.")
    assert "from 0 to 16" in bright
    assert "(8, 8, 1)" in shape
    assert "none.png" in missing
    assert "text.png" in text
    assert "{{" not in text
    assert "classify(['0.png'])" in single
    assert array.startswith("TypeError: images: ")


_LOAD = "import lingvo_pipe as lp; lp.load('run')"
_LOAD_TRUSTED = "import lingvo_pipe as lp; model = lp.load('run', model='{}')".format(
    SMALL.partition("=")[2]
)


def _set_trap(trained: Path, folder: Path, changes: dict[str, str]) -> None:
    """Copies the run, changes entries of its params, and writes `trap.py`."""
    shutil.copytree(trained, folder, dirs_exist_ok=True)
    (folder / "trap.py").write_text("raise SystemExit('imported')")
    params = folder / "run/params.txt"
    text = params.read_text()
    for path, value in changes.items():
        text, count = re.subn(
            rf"(?m)^{re.escape(path)} : .*", f"{path} : {value}", text
        )
        assert count == 1
    params.write_text(text)


def test_what_a_run_names_is_not_imported(trained: Path, tmp_path: Path) -> None:
    """Its model differs from the registered one, and is refused."""
    path = "task.pipeline.cell_tpl[1].random_seed"
    _set_trap(trained, tmp_path, {path: "type/trap/Trap"})
    run = CommandLine(tmp_path).run("-c", _LOAD_TRUSTED)
    assert run[0] == 1
    assert f"{path} : type/trap/Trap" in run[2]
    assert "ValueError" in run[2]


_CLASSIFY_ZEROS = "; import numpy as np; model.classify([np.zeros([8, 8, 1])])"


@pytest.mark.parametrize("file", ["features.json", exhaustive("dataset_info.json")])
def test_a_runs_data_set_imports_nothing(
    trained: Path, tmp_path: Path, file: str
) -> None:
    """TensorFlow Datasets imports the classes that the files of a data set name."""
    changes = {"input.dataset": "'others'", "input.data_dir": "'run/data'"}
    _set_trap(trained, tmp_path, changes)
    prepared_builder("optdigits", str(tmp_path))
    others = tmp_path / "run/data/others"
    others.parent.mkdir()
    (tmp_path / "optdigits").rename(others)
    path = others / "1.0.0" / file
    content = {} if file == "features.json" else json.loads(path.read_text())
    trap = {"pythonClassName": "trap.Trap", "jsonFeature": {"json": "{}"}}
    new = content | {"features": trap} if content else trap
    path.write_text(json.dumps(new))
    run = CommandLine(tmp_path).run("-c", _LOAD_TRUSTED + _CLASSIFY_ZEROS)
    assert run[0] == 1
    assert "UserValueError" in run[2]
    assert "'trap.Trap'" in run[2]


@pytest.mark.parametrize(
    ("name", "trap"),
    [
        ("run.evil.Toy", "run/evil.py"),
        ("image.evil.Toy", "params/image/evil.py"),
        ("mine.small_model.Small", "mine/__init__.py"),
    ],
)
def test_a_runs_model_is_not_imported(tmp_path: Path, name: str, trap: str) -> None:
    """The folder that holds a run is where Python looks for modules."""
    run = tmp_path / "run"
    run.mkdir()
    (run / "params.txt").write_text(f"# model: {name}\ntask.name : 'task'\n")
    (tmp_path / trap).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / trap).write_text("open('imported', 'w')")
    loaded = CommandLine(tmp_path).run("-c", _LOAD)
    assert loaded.code == 1
    assert not (tmp_path / "imported").exists()
    assert "LookupError" in loaded.errors
    assert f"model='{name}'" in loaded.errors
