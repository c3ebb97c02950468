"""Export of a trained model for programs without this library.

    model = tf.saved_model.load("/tmp/digits/export/539")
    model.signatures["serving_default"](image=images)["probabilities"]

Layers run one after another, on any device, for any number of examples B. `README.md`
in the SavedModel's folder describes its signatures.
"""

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from lingvo_pipe.core import trees
from lingvo_pipe.core.atomic_file import sync, write_atomically
from lingvo_pipe.core.regular_file import locked_folder, remove
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.layers.sequential import outputs_in_sequence
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.training.decode.generator import generate_function
from lingvo_pipe.training.decode.translator import translate_function
from lingvo_pipe.training.run.run_classes import known_class_names
from lingvo_pipe.training.task import protocols
from lingvo_pipe.training.task.base_task import BaseTask

SIGNATURE = "serving_default"
# The text of README.md.
_HEAD = """# SavedModel

    model = tf.saved_model.load(FOLDER)
    outputs = model.signatures[NAME](INPUT=...)

Its signatures: {}. `saved_model_cli show --all --dir FOLDER` prints their inputs and
outputs.
"""
_IMAGES = """
`classify_images` takes the contents of PNG, JPEG, GIF or BMP files, string [B], as
`images`, and prepares them: {}
If each of the model's outputs has a name, `class_name`, string [B], are the likeliest.

`serving_default` takes images prepared so, float32 {}.
"""
_TRANSLATE = """
`translate` takes plain `sentences`, string [B]. Import `tensorflow_text` first, because
the vocabulary within the model needs its operations. The target languages: {}.
"""
_GENERATE = """
`generate` takes `prompts`, string [B], and returns `texts`: each prompt, as the
vocabulary spells it, and at most `max_tokens`, int32 [], that follow it. Import
`tensorflow_text` first. A prompt "" is the begin of a document. How a token is drawn:

    temperature, float32 []   by what scores are divided; 0 takes the likeliest token
    top_k, int32 []           from how many likeliest tokens; 0 is all
    top_p, float32 []         from the likeliest with this probability together
    seed, int64 []            texts depend on it and on their number in the batch
"""

Predict = Callable[..., dict[str, tf.Tensor]]


def export_model(
    task: BaseTask, data: Any, path: Path, class_names: Sequence[str] = ()
) -> None:
    """Writes a SavedModel with a task's current weights to the folder `path`.

    The signature `serving_default` takes, by name, the fields of a batch on which
    predictions depend, and returns the task's `ServingOutputs`. If the task and its
    input `data` allow it, the signature `classify_images` takes the contents of image
    files, `translate` takes sentences, or `generate` takes prompts. `data.element_spec`
    has the tf.TensorSpec `[B, ...]` of each field. `class_names` are the names of the
    classes, the input's if empty.
    """
    element_spec = data.element_spec
    specs = {
        name.replace(".", "_"): tf.TensorSpec([None, *spec.shape[1:]], spec.dtype)
        for name, spec in trees.leaves(element_spec)
    }

    def predict(**fields: tf.Tensor) -> dict[str, tf.Tensor]:
        # Predictions do not depend on missing fields.
        flat = [fields.get(name, tf.zeros([], specs[name].dtype)) for name in specs]
        return predictions(task, tf.nest.pack_sequence_as(element_spec, flat))

    needed = _needed(predict, specs)
    module = tf.Module()
    module.model_variables = list(task.VariablePaths().values())
    signatures = {SIGNATURE: _traced(predict, {name: specs[name] for name in needed})}
    if needed == ["image"] and isinstance(data, protocols.ImageInput):
        signatures["classify_images"] = _classify_images(
            predict, data, class_names or known_class_names(data)
        )
    if protocols.translates(task, data):
        module.vocabulary = data.vocabulary
        signatures["translate"] = _translate(task, data)
    if protocols.generates(task, data):
        module.vocabulary = data.vocabulary
        signatures["generate"] = generate_function(task, data)
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked_folder(path.parent):
        _put_back(path)
        scratch = path.with_name(f".{path.name}.incomplete")
        remove(scratch)
        tf.saved_model.save(module, str(scratch), signatures=signatures)
        write_atomically(scratch / "README.md", _readme(signatures, data))
        for file in scratch.rglob("*"):
            sync(file)
        _replace(path, scratch)


def _replace(path: Path, scratch: Path) -> None:
    """Puts `scratch` in the place of `path`, which is absent for a moment alone."""
    replaced = _aside(path)
    remove(replaced)
    with contextlib.suppress(FileNotFoundError):
        path.rename(replaced)
    scratch.rename(path)
    sync(path.parent)
    remove(replaced)


def _put_back(path: Path) -> None:
    """Puts back the model that was at `path`, if an exporter died in that moment."""
    if not path.exists() and _aside(path).exists():
        _aside(path).rename(path)


def _aside(path: Path) -> Path:
    return path.with_name(f".{path.name}.replaced")


def predictions(task: BaseTask, batch: NestedMap) -> dict[str, tf.Tensor]:
    """Returns the task's `ServingOutputs` for a batch, without running a pipeline."""
    layers = [*task.pipeline.before, *task.pipeline.cells]
    with ForwardContext(do_eval=True):
        *_, outputs = outputs_in_sequence(
            layers,
            [layer.theta for layer in layers],
            task.PipelineInputs(batch),
            task.pipeline.params.state_dtype,
        )
        return task.ServingOutputs(outputs)


def _classify_images(
    predict: Predict, data: protocols.ImageInput, names: Sequence[str]
) -> Any:
    spec = tf.TensorSpec(data.image_shape, tf.float32)

    def classify_images(images: tf.Tensor) -> dict[str, tf.Tensor]:
        with tf.device("/CPU:0"):
            pixels = tf.map_fn(data.EvalImage, images, fn_output_signature=spec)
        outputs = predict(image=pixels)
        of_classes = [x for x in outputs.values() if x.shape[1:] == [len(names)]]
        if names and of_classes:
            with tf.device("/CPU:0"):
                label = tf.argmax(of_classes[0], axis=-1)
                outputs["class_name"] = tf.gather(tf.constant(names), label)
        return outputs

    return _traced(classify_images, {"images": tf.TensorSpec([None], tf.string)})


def _translate(task: Any, data: protocols.SentenceInput) -> Any:
    translate = translate_function(
        lambda *arguments: task.Decode(task.theta, *arguments, on_stages=False), data
    )
    languages = data.TargetLanguages()
    if len(languages) > 1:
        return translate.get_concrete_function()
    language = tf.constant(languages[0] if languages else "")
    return _traced(
        lambda sentences: translate(sentences, language),
        {"sentences": tf.TensorSpec([None], tf.string)},
    )


def _traced(predict: Predict, specs: Mapping[str, tf.TensorSpec]) -> Any:
    named = {k: tf.TensorSpec(s.shape, s.dtype, name=k) for k, s in specs.items()}
    return tf.function(predict, autograph=False).get_concrete_function(**named)


def _needed(predict: Predict, specs: Mapping[str, tf.TensorSpec]) -> list[str]:
    function = _traced(predict, specs)
    pending, seen = list(tf.nest.flatten(function.structured_outputs)), set()
    while pending:
        operation = pending.pop().op
        if operation not in seen:
            seen.add(operation)
            pending += [*operation.inputs]
            pending += [o for c in operation.control_inputs for o in c.outputs]
    _, arguments = function.structured_input_signature
    tensors = zip(sorted(arguments), function.inputs, strict=False)
    return [name for name, tensor in tensors if tensor.op in seen]


def _readme(signatures: Iterable[str], data: Any) -> str:
    text = _HEAD.format(", ".join(f"`{name}`" for name in signatures))
    if "classify_images" in signatures:
        shape = ", ".join(map(str, data.image_shape))
        text += _IMAGES.format(data.pixel_note, f"[B, {shape}]")
    if "translate" in signatures:
        text += _TRANSLATE.format(", ".join(data.TargetLanguages()) or "one")
    if "generate" in signatures:
        text += _GENERATE
    return text
