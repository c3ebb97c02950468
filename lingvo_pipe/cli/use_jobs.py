"""Jobs that use the weights of a run: evaluate, translate, generate, export."""

import dataclasses
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import model_registry
from lingvo_pipe.cli.model_request import ModelRequest, joined, log_after, place_model
from lingvo_pipe.cli.param_values import naming_override
from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.core.programs import check_writable, write_output
from lingvo_pipe.hyperparams import Params
from lingvo_pipe.serving.export import export_model
from lingvo_pipe.training.decode.decoder_run import check_decode_input, decode
from lingvo_pipe.training.decode.generator import (
    DEFAULT_SAMPLING,
    TextGenerator,
    check_sampling,
)
from lingvo_pipe.training.decode.translator import Translator, check_text_input
from lingvo_pipe.training.eval.run_evaluations import evaluate_run
from lingvo_pipe.training.eval.run_weights import open_run, weights_in_turn
from lingvo_pipe.training.run.changed_params import (
    check_allowed,
    check_use,
    unused_params,
)
from lingvo_pipe.training.run.run_classes import read_class_names
from lingvo_pipe.training.run.run_directory import RunDirectory
from lingvo_pipe.training.run.run_input import check_meaning
from lingvo_pipe.training.run.run_vocabulary import check_vocabulary
from lingvo_pipe.training.task.base_task import BaseTask
from lingvo_pipe.training.task.image_checks import labels_explained
from lingvo_pipe.training.task.input_checks import checked_batches
from lingvo_pipe.training.task.pipeline_inputs import configure_inputs
from lingvo_pipe.training.task.protocols import PromptInput
from lingvo_pipe.training.task.task_params import plain_task, whole_task


@dataclasses.dataclass(frozen=True)
class RunUse:
    """A run, finished or not, and the data set on which its weights are used."""

    logdir: str
    split: str  # The data set, such as `Test`.
    checkpoint: str | None = None  # See `weights_in_turn`.
    follow_seconds: float | None = None  # See `weights_in_turn`.
    allowed_changes: Sequence[str] = ()  # See `check_use`.
    allow_foreign: bool = False  # See `RunDirectory`.
    writes: bool = True  # Whether the job writes into the run's directory.

    def directory(self, model_name: str) -> RunDirectory:
        """Returns the run's directory. Waits up to `follow_seconds` until it exists."""
        logdir = os.path.expanduser(self.logdir)
        return open_run(
            logdir, model_name, self.follow_seconds, self.allow_foreign, self.writes
        )

    def open(self, model_name: str, model: Params) -> RunDirectory:
        """Returns the run's directory, after a check that the run fits the model.

        Raises:
            ValueError: if the run's weights do not fit the model.
        """
        directory = self.directory(model_name)
        trained, now = directory.read_params() or "", model.ToText()
        if self.allowed_changes:
            check_allowed(self.allowed_changes, trained, now)
        check_use(trained, now, self.allowed_changes)
        return directory


def evaluate_data_set(request: ModelRequest, use: RunUse) -> dict[str, float]:
    """Evaluates weights on a data set. Returns the metrics of the last checkpoint."""
    task, data, directory, steps, log = _prepare(
        request, use, lambda x: checked_batches(x, "EvalBatches"), with_slices=True
    )
    task.CheckInput(task.params, data)
    with labels_explained(data):
        return evaluate_run(task, data, directory, use.split.lower(), steps, log)


def export_trained(request: ModelRequest, use: RunUse) -> None:
    """Writes trained weights as a SavedModel."""
    task, data, directory, steps, log = _prepare(request, use, lambda x: None)
    check_meaning(directory.path, data)
    for step in steps:
        path = directory.export_path / str(step)
        export_model(task, data, path, read_class_names(directory.path))
        log(f"Exported the checkpoint of step {step} to {path}.")


def decode_data_set(request: ModelRequest, use: RunUse) -> None:
    """Translates a data set with trained weights."""
    task, data, directory, steps, log = _prepare(request, use, check_decode_input)
    decode(task, data, directory, use.split.lower(), steps, log)


STANDARD = "-"  # Standard input, or standard output.


def write_texts(
    request: ModelRequest,
    use: RunUse,
    input_file: str,
    output_file: str,
    language: str | None,
    settings: Mapping[str, Any],
) -> None:
    """Translates the lines of `input_file` to `language`, into `output_file`.

    A language model continues the lines instead, by the `settings`, which are fields of
    a Sampling. The name `-` stands for standard input or output. Empty lines stay empty
    in a translation.
    """
    output = None if output_file == STANDARD else Path(output_file).expanduser()
    if output is not None:
        check_writable(output, "--output_file")
    lines = _read_lines(input_file)
    log_to = sys.stdout if output else sys.stderr
    use = dataclasses.replace(use, writes=False)
    task, data, directory, steps, log = _prepare(
        request, use, lambda data: _check_texts(data, language, settings), log_to
    )
    check_vocabulary(directory.path, data)
    (step,) = steps
    batch_size = data.params.batch_size
    if isinstance(data, PromptInput):
        log(f"Continuing {len(lines):,} lines with the checkpoint of step {step}.")
        sampling = DEFAULT_SAMPLING._replace(**settings)
        texts = TextGenerator(task, data, batch_size)(lines, sampling)
    else:
        log(f"Translating {len(lines):,} lines with the checkpoint of step {step}.")
        texts = Translator(task, data, batch_size)(lines, language)
    # If the vocabulary keeps texts unchanged, a text may have newlines.
    text = "".join(f"{' '.join(text.splitlines())}\n" for text in texts)
    if output is None:
        # Not by sys.stdout, which may lose lines of a log (see `keep_output`).
        with open(sys.stdout.fileno(), "wb", closefd=False) as file:
            file.write(text.encode())
    else:
        write_output(output, text)
        log(f"Wrote {output}.")


def _check_texts(data: Any, language: str | None, settings: Mapping[str, Any]) -> None:
    """Raises ValueError if no model of texts reads `data`, or a flag does not fit it.

    A language model reads a PromptInput.
    """
    check_text_input(data)
    if isinstance(data, PromptInput):
        _refuse({"target_language": language}, "a model that translates")
        check_sampling(DEFAULT_SAMPLING._replace(**settings), "--")
    else:
        _refuse(settings, "a language model")


def _refuse(settings: Mapping[str, Any], expected: str) -> None:
    """Raises ValueError if a flag was given that has no effect on the model's texts."""
    for name, value in settings.items():
        if value is not None:
            raise UserValueError(path=f"--{name}", expected=expected, got=value)


def _read_lines(file: str) -> list[str]:
    try:
        if file == STANDARD:
            content = sys.stdin.buffer.read()
        else:
            content = Path(file).expanduser().read_bytes()
        text = content.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        got = Words(f"{file}: {error}")
        expected = "a file of lines in UTF-8"
        raise UserValueError(path="--input_file", expected=expected, got=got) from error
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return lines if lines[-1] else lines[:-1]


def _prepare(
    request: ModelRequest,
    use: RunUse,
    check_input: Callable[[Any], object],
    log_to: TextIO | None = None,
    with_slices: bool = False,
) -> tuple[BaseTask, Any, RunDirectory, Iterator[int], Callable[[str], None]]:
    """Returns the task, its input, the run's directory, steps, and a function to log.

    Each next step restores a checkpoint into the task (see `weights_in_turn`).
    `check_input` gets the input. Layers are sliced only if `with_slices`.
    """
    with naming_override(request.override):
        model = request.params(use.split)
        if not with_slices:
            model.task = whole_task(model.task)
        note = place_model(model, request, lambda: use.directory(request.name))
        data = model.input.Instantiate()
        # Checked first, because building the model may take minutes.
        check_input(data)
        directory = use.open(request.name, model)
        registered = model_registry.GetParams(request.name, "Train").ToText()
        trained, now = directory.read_params() or "", model.ToText()
        note = joined(note, unused_params(trained, registered, now))
        configure_inputs(model.task, data)
        task, log = plain_task(model.task).Instantiate(), log_after(note, log_to)
    steps = weights_in_turn(task, directory, use.checkpoint, use.follow_seconds, log)
    fitting = _fitting(steps, directory, trained, now, use.allowed_changes)
    return task, data, directory, fitting, log


def _fitting(
    steps: Iterable[int],
    directory: RunDirectory,
    trained: str,
    now: str,
    allowed: Sequence[str],
) -> Iterator[int]:
    """Yields steps while the run's params, at first `trained`, fit the model's, `now`.

    Meanwhile a trainer may resume the run with other params.
    """
    for step in steps:
        before, trained = trained, directory.read_params() or ""
        if trained != before:
            check_use(trained, now, allowed)
        yield step
