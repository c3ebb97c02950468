"""Jobs that print models, params or differences, or write the page of a run."""

import dataclasses
import os
import sys
from collections.abc import Sequence

import model_registry
from lingvo_pipe.cli.auto_params import AutoParams
from lingvo_pipe.cli.model_request import ModelRequest, check_batch, joined, place_model
from lingvo_pipe.core.error_text import error_text
from lingvo_pipe.hyperparams import Params
from lingvo_pipe.hyperparams.differences import diff_texts
from lingvo_pipe.training.eval.run_weights import open_run
from lingvo_pipe.training.profiling.inspect_model import describe
from lingvo_pipe.training.report.html_report import write_report
from lingvo_pipe.training.task.local_training import with_local_losses
from lingvo_pipe.training.task.pipeline_inputs import configure_inputs


def list_models(imports: Sequence[str]) -> list[str]:
    """Returns the names of all models. Prints the modules that cannot be imported."""

    def report(name: str, error: Exception) -> None:
        print(f"warning: {name} does not import: {error_text(error)}", file=sys.stderr)

    model_registry.ImportModels(["params", *imports], report)
    return model_registry.ListModels()


def inspect_model(request: ModelRequest) -> str:
    """Describes layers, shapes, parameters and stages of a model."""
    model = request.params("Train")
    check_batch(model)
    auto = AutoParams(model.task.pipeline)
    note = place_model(model, request)
    data = model.input.Instantiate()
    note = joined(note, auto.resolve(model, data, model.task.pipeline.devices))
    configure_inputs(model.task, data)
    description = describe(with_local_losses(model.task, data), data)
    return f"{note}\n\n{description}" if note else description


def inspect_params(request: ModelRequest) -> str:
    """Returns all params of a model, and its inputs' params for other data sets."""
    texts = [request.params("Train").ToText()]
    for dataset in model_registry.GetDatasets(model_registry.GetClass(request.name)):
        if dataset != "Train":
            only_input = Params()
            only_input.Define("input", request.params(dataset).input, "")
            texts.append(f"# {dataset}\n{only_input.ToText()}")
    return "\n".join(texts).rstrip("\n")


def diff_params(
    request: ModelRequest, other: str | None, logdir: str | None, allow_foreign: bool
) -> str:
    """Returns params that differ between a model, `>`, and another or a run, `<`."""
    model_params = request.params("Train")
    if other is not None:
        other_params = dataclasses.replace(request, name=other).params("Train")
        differences = diff_texts(model_params.ToText(), other_params.ToText())
    else:
        path = os.path.expanduser(logdir or "")
        directory = open_run(path, request.name, allow_foreign=allow_foreign)
        place_model(model_params, request, lambda: directory)
        configure_inputs(model_params.task, model_params.input.Instantiate())
        differences = diff_texts(model_params.ToText(), directory.read_params() or "")
    legend = f"# > {request.name}    < {other or directory.path}\n"
    return (legend + differences).rstrip("\n") if differences else "Nothing differs."


def report_run(
    logdir: str, model_name: str | None = None, allow_foreign: bool = False
) -> str:
    """Writes the page about a run, and returns a line with its path."""
    path = os.path.expanduser(logdir)
    directory = open_run(path, model_name, allow_foreign=allow_foreign, writes=True)
    return f"The report is {write_report(directory)}."
