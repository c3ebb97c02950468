"""An exported model needs nothing of ours, and predicts as the pipeline does."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.core.regular_file import remove
from lingvo_pipe.input.images.image_input import ImageClassificationInput
from lingvo_pipe.input.text.language_model_input import LanguageModelInput
from lingvo_pipe.input.text.vocabulary import train_vocabulary
from lingvo_pipe.layers.convolution import GlobalAveragePoolingLayer
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.models.images.image_classifier import ImageClassifier
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.serving import export
from lingvo_pipe.serving.export import export_model
from lingvo_pipe.training.decode.generator import TextGenerator, check_sampling
from lingvo_pipe.training.task.base_task import BaseTask
from lingvo_pipe.training.task.protocols import Sampling
from tests.models.transformer import small_models
from tests.support.cases import exhaustive
from tests.support.errors import fails
from tests.training.toy_run import BATCH, CLASSES, Input, batch, published_params

# Run where no module of ours can be found.
_LOAD = """
import sys
import numpy as np
import tensorflow as tf
model = tf.saved_model.load(sys.argv[1])
inputs = {k: tf.constant(v) for k, v in np.load(sys.argv[2]).items()}
outputs = model.signatures["serving_default"](**inputs)
assert not any("lingvo" in name for name in sys.modules)
np.savez(sys.argv[3], **{k: v.numpy() for k, v in outputs.items()})
"""


def served(path: Path, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The outputs of an exported model in plain TensorFlow."""
    files = [str(path.parent / name) for name in ("inputs.npz", "outputs.npz")]
    np.savez(files[0], allow_pickle=False, **inputs)
    subprocess.run(
        [sys.executable, "-I", "-c", _LOAD, str(path), *files],
        check=True,
        cwd=path.parent,
        stdin=subprocess.DEVNULL,
    )
    return dict(np.load(files[1]))


def served_here(path: Path, inputs: dict[str, np.ndarray]) -> dict[str, Any]:
    """The same in this process."""
    model = tf.saved_model.load(str(path))
    given = {name: tf.constant(value) for name, value in inputs.items()}
    return model.signatures["serving_default"](**given)


def predicted(task: BaseTask, given: NestedMap) -> np.ndarray:
    with ForwardContext(do_eval=True):
        return np.asarray(task.ComputePredictions(task.Values(), given))


def randomize(task: BaseTask) -> None:
    """Also what is not trained, such as moving averages."""
    random = np.random.default_rng(0)
    for variable in task.VariablePaths().values():
        variable.assign(random.uniform(0.1, 1.0, variable.shape))


@pytest.fixture
def classifier() -> Any:
    task = published_params().Instantiate()
    randomize(task)
    return task


@pytest.mark.parametrize("state_dtype", [None, tf.bfloat16])
def test_images_are_classified_as_by_the_pipeline(
    tmp_path: Path, state_dtype: Any
) -> None:
    """Also if the pipeline rounds what its cells pass on."""
    p = published_params()
    p.pipeline.state_dtype = state_dtype
    classifier = p.Instantiate()
    randomize(classifier)
    given = batch(0)
    export_model(classifier, Input(given).TrainBatches(), tmp_path / "7")
    found = served_here(tmp_path / "7", {"image": given.image})
    logits = predicted(classifier, given.Transform(tf.constant))
    np.testing.assert_allclose(found["logits"], logits, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(
        found["probabilities"], tf.nn.softmax(logits), rtol=1e-6, atol=1e-6
    )
    np.testing.assert_array_equal(found["label"], logits.argmax(-1))


def linear_classifier(num_channels: int, num_classes: int) -> Any:
    p = ImageClassifier.Params().Set(name="task")
    p.pipeline.cell_tpl = [
        GlobalAveragePoolingLayer.Params(),
        FCLayer.Params().Set(input_dim=num_channels, output_dim=num_classes),
    ]
    task = p.Instantiate()
    randomize(task)
    return task


def test_files_of_images_are_classified_as_their_pixels_are(tmp_path: Path) -> None:
    """Files are prepared within the model, as the input prepares images."""
    pixels = np.random.default_rng(0).integers(0, 17, [3, 8, 8, 1], np.uint8)
    data = ImageClassificationInput.Params().Set(batch_size=2, pixel_max=16)
    data.labels = [*range(9, -1, -1)]  # So names differ from positions.
    task = linear_classifier(1, 10)
    export_model(task, data.Instantiate(), tmp_path / "7")
    signatures = tf.saved_model.load(str(tmp_path / "7")).signatures
    files = [tf.io.encode_png(image).numpy() for image in pixels]
    found = signatures["classify_images"](images=tf.constant(files))
    image = tf.constant(pixels / np.float32(16))
    want = signatures["serving_default"](image=image)
    assert len({*map(tuple, want["logits"].numpy())}) == len(files)
    for name, values in want.items():
        np.testing.assert_array_equal(found[name], values)
    names = data.Instantiate().class_names
    assert found["class_name"].numpy().tolist() == [
        names[label].encode() for label in want["label"]
    ]
    bright, small = pixels[0] * 15, pixels[0, :7]
    for wrong in (tf.io.encode_png(bright), tf.io.encode_png(small), b"text"):
        with pytest.raises(tf.errors.InvalidArgumentError):
            signatures["classify_images"](images=tf.reshape(wrong, [1]))
    readme = (tmp_path / "7" / "README.md").read_text()
    assert "float32 [B, 8, 8, 1]" in readme
    assert "Pixels from 0 to 16 are divided by it." in readme


def test_names_of_classes_are_the_runs(tmp_path: Path) -> None:
    data = ImageClassificationInput.Params().Set(batch_size=2, pixel_max=16)
    export_model(
        linear_classifier(1, 2), data.Instantiate(), tmp_path / "7", ["bee", "cat"]
    )
    signatures = tf.saved_model.load(str(tmp_path / "7")).signatures
    png = tf.io.encode_png(np.zeros([8, 8, 1], np.uint8))
    found = signatures["classify_images"](images=png[tf.newaxis])
    assert found["class_name"].numpy()[0] in (b"bee", b"cat")


def test_any_number_of_examples_is_served(tmp_path: Path, classifier: Any) -> None:
    given = batch(0)
    export_model(classifier, Input(given).TrainBatches(), tmp_path / "7")
    signature = tf.saved_model.load(str(tmp_path / "7")).signatures["serving_default"]
    assert list(signature.structured_input_signature[1]) == ["image"]
    whole = signature(image=tf.constant(given.image))["logits"]
    for n in range(1, BATCH):
        some = signature(image=tf.constant(given.image[:n]))["logits"]
        assert some.shape == [n, CLASSES]
        np.testing.assert_allclose(some, whole[:n], rtol=1e-6, atol=1e-6)


def test_a_model_that_is_there_is_replaced(
    tmp_path: Path, classifier: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is not absent while its files are removed, as it was once."""

    def remove_aside(path: Path) -> None:
        has_model = (tmp_path / "7").exists()
        remove(path)
        assert (tmp_path / "7").exists() == has_model

    monkeypatch.setattr(export, "remove", remove_aside)
    data = Input(batch(0)).TrainBatches()
    image = tf.constant(batch(0).image)
    found = []
    for _ in range(2):
        export_model(classifier, data, tmp_path / "7")
        model = tf.saved_model.load(str(tmp_path / "7"))
        found.append(model.signatures["serving_default"](image=image)["logits"])
        for variable in classifier.VariablePaths().values():
            variable.assign(variable * 0.5)
    assert (found[0].numpy() != found[1].numpy()).any()
    assert [path.name for path in tmp_path.iterdir()] == ["7"]


def test_a_model_is_put_back_and_locked_while_the_next_one_is_made(
    tmp_path: Path, classifier: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once no model was there after the kill of an exporter between two renames."""
    (tmp_path / ".7.replaced").mkdir()
    (tmp_path / ".7.replaced" / "earlier").touch()

    def be_killed(*_: Any, **__: Any) -> None:
        assert (tmp_path / "7" / "earlier").exists()
        folder = os.open(tmp_path, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(folder)
        raise KeyboardInterrupt

    monkeypatch.setattr(tf.saved_model, "save", be_killed)
    with pytest.raises(KeyboardInterrupt):
        export_model(classifier, Input(batch(0)).TrainBatches(), tmp_path / "7")
    assert [path.name for path in tmp_path.iterdir()] == ["7"]


@pytest.mark.exhaustive
def test_the_next_tokens_of_a_translation_are_served_elsewhere(tmp_path: Path) -> None:
    task = small_models.translation_task(tied=True).Instantiate()
    sources, targets = small_models.sentences([3, 5]), small_models.sentences([4, 2], 1)
    given = small_models.translation_batch(
        small_models.alone(sources), small_models.alone(targets)
    )
    spec = given.Transform(lambda x: tf.TensorSpec(x.shape, x.dtype))
    export_model(task, SimpleNamespace(element_spec=spec), tmp_path / "1")
    names = {
        f"{stream}_{part}": given[stream][part].numpy()
        for stream in ("source", "target")
        for part in ("ids", "segment_ids", "segment_pos")
    }
    found = served(tmp_path / "1", names)
    np.testing.assert_allclose(
        found["logits"], predicted(task, given), rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize(
    "sampling",
    [
        exhaustive(Sampling(9, temperature=0.0)),
        Sampling(9, temperature=0.8, top_k=8, top_p=0.9, seed=3),
    ],
)
def test_texts_are_continued_as_in_python(tmp_path: Path, sampling: Sampling) -> None:
    """Also if Python continues them in other batches."""
    vocabulary = train_vocabulary(["a b c d e", "c a"], small_models.NUM_TOKENS)
    (tmp_path / "letters.vocab").write_bytes(vocabulary)
    data = LanguageModelInput.Params().Set(
        files=["no.txt"],
        vocab_file=str(tmp_path / "letters.vocab"),
        vocab_size=small_models.NUM_TOKENS,
        batch_size=2,
        length=4,
    )
    task = small_models.language_model_task().Instantiate()
    randomize(task)
    export_model(task, data.Instantiate(), tmp_path / "7")
    prompts = ["b", "", "a c d a b c", "c"]
    texts = TextGenerator(task, data.Instantiate(), 3)(prompts, sampling)
    assert all(map(str.startswith, texts, prompts))
    assert [*map(len, texts)] != [*map(len, prompts)]
    exported = tf.saved_model.load(str(tmp_path / "7"))
    generate = exported.signatures["generate"]
    dtypes = generate.structured_input_signature[1]
    settings = {
        name: tf.constant(value, dtypes[name].dtype)
        for name, value in sampling._asdict().items()
    }
    served = generate(prompts=tf.constant(prompts), **settings)["texts"]
    assert [text.decode() for text in served.numpy()] == texts
    for name, value in (("max_tokens", 0), ("temperature", -1.0), ("top_p", 0.0)):
        wrong = {**settings, name: tf.constant(value)}
        with pytest.raises(tf.errors.InvalidArgumentError, match=name):
            generate(prompts=tf.constant(prompts), **wrong)
    assert generate(prompts=tf.constant([], tf.string), **settings)["texts"].shape == [
        0
    ]
    exported.model_variables[-1].assign(tf.fill([small_models.NUM_TOKENS], np.nan))
    with pytest.raises(tf.errors.InvalidArgumentError, match="score"):
        generate(prompts=tf.constant(prompts), **settings)
    for name, value in (
        ("max_tokens", 0),
        ("max_tokens", 1.5),
        ("max_tokens", 2**31),
        ("temperature", -1.0),
        ("temperature", float("nan")),
        ("top_k", True),
        ("top_p", 1.5),
        ("seed", 2**63),
    ):
        with fails(path=name, got=value):
            check_sampling(sampling._replace(**{name: value}))
    with fails() as error:
        check_sampling(sampling._replace(max_tokens=0, top_k=-1, seed=0.5))
    paths = [problem.path for problem in error.value.problems]
    assert paths == ["max_tokens", "top_k", "seed"]
    check_sampling(sampling._replace(temperature=0.0, top_k=0, top_p=1, seed=0))
    with fails(path="seed", got=5):  # Once it had no effect.
        check_sampling(Sampling(9, temperature=0.0, seed=5))


def test_keras_takes_an_exported_model_as_a_layer(
    tmp_path: Path, classifier: Any
) -> None:
    given = batch(0)
    export_model(classifier, Input(given).TrainBatches(), tmp_path / "7")
    endpoint = "serving_default"
    layer = keras.layers.TFSMLayer(str(tmp_path / "7"), call_endpoint=endpoint)
    model = keras.Sequential([keras.Input(given.image.shape[1:]), layer])
    found = model.predict(given.image, verbose=0)["logits"]
    logits = predicted(classifier, given.Transform(tf.constant))
    np.testing.assert_allclose(found, logits, rtol=1e-6, atol=1e-6)


def test_an_export_runs_code(tmp_path: Path) -> None:
    """Any graph is run, one that writes files too: so the page on security warns."""
    written, export = tmp_path / "written", tmp_path / "export"
    module = tf.Module()
    module.predict = tf.function(
        lambda x: (tf.io.write_file(str(written), "code"), {"y": x})[1],
        input_signature=[tf.TensorSpec([], tf.float32, "x")],
    )
    tf.saved_model.save(module, str(export), {"serving_default": module.predict})
    served_here(export, {"x": np.zeros([], np.float32)})
    assert written.read_text() == "code"
