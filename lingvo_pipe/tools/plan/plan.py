"""Plans how to run a model, before any device is rented.

    lingvo_pipe plan --model=lm.giant.L103 --devices=8xTPUv3
    lingvo_pipe plan --largest=lm.giant --devices=8xTPUv3
    lingvo_pipe plan --keras=my_models.vision:make_model --batch=64 --devices=2xT4

Prints the fastest ways that fit into memory, how many bytes other ways need too much,
and the trainer's flags for the fastest way. Planning needs no device and allocates
nothing. But `--devices=2xmeasured` stands for devices of this machine, on which cells
are timed.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import model_registry
from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.core.programs import (
    OnceAction,
    check_writable,
    flag_parser,
    program,
)
from lingvo_pipe.core.tensorflow_startup import importing_tensorflow
from lingvo_pipe.pipeline.schedules.recompute import POLICIES
from lingvo_pipe.planner.resources.candidate import OFFLOADS, SCHEDULES
from lingvo_pipe.planner.resources.known_devices import parse_devices
from lingvo_pipe.planner.resources.resources import Constraints

# The flag for each attribute of Constraints.
_FLAGS = {
    "num_replicas": "--num_replicas",
    "num_devices": "--num_stages",
    "num_micro_batches": "--num_micro_batches",
    "schedule": "--schedule",
    "recompute": "--recompute",
    "offload": "--offload",
}
_IMAGE_SUFFIXES = (".png", ".pdf", ".svg")


def main(arguments: Sequence[str]) -> int:
    """Runs the planner, and returns the exit code."""
    options = _options(arguments)
    with program(["plan"]):
        if options.list_models:
            with importing_tensorflow():
                from lingvo_pipe.cli.inspect_jobs import list_models
            print("\n".join(list_models(options.model_imports)))
        else:
            _plan(options)
    return 0


def _plan(options: argparse.Namespace) -> None:
    image = None if options.picture is None else _image_path(options.picture)
    requested = parse_devices(options.devices, options.network_gbits)
    with importing_tensorflow():
        from lingvo_pipe.tools.plan.model_plan import Plan
        from lingvo_pipe.tools.plan.planned_model import (
            PlannedModel,
            find_devices,
            largest_that_fits,
        )
    devices = find_devices(requested)
    model_registry.ImportModels(options.model_imports)
    values = {name: getattr(options, flag[2:]) for name, flag in _FLAGS.items()}
    names = {**_FLAGS, "price": "--price", "devices": "--devices"}
    constraints = Constraints(**values, names=names)

    def register(name: str) -> PlannedModel:
        return PlannedModel(name, options.model_params_override, options.batch)

    def planned(model: PlannedModel) -> Plan:
        if devices.names:
            print("timing cells may take minutes", file=sys.stderr)
        return Plan(model, devices, constraints, options.price)

    if options.keras is not None:
        plan = planned(_keras_model(options))
    elif options.largest is None:
        plan = planned(register(options.model))
    else:
        log = functools.partial(print, flush=True)
        plan = largest_that_fits(options.largest, register, planned, log)
        print()
    print(plan)
    if image is not None:
        print(f"\n{plan.draw(image)}")


def _keras_model(options: argparse.Namespace) -> Any:
    from lingvo_pipe.tools.plan.keras_plan import function_of, keras_params
    from lingvo_pipe.tools.plan.planned_model import PlannedModel

    function = function_of(options.keras, "--keras")
    params = keras_params(function, options.batch, options.length, "--")
    return PlannedModel(options.keras, options.model_params_override, params=params)


def _image_path(text: str) -> Path:
    path = Path(os.path.expanduser(text))
    if path.suffix not in _IMAGE_SUFFIXES:
        expected = f"a path that ends in {', '.join(_IMAGE_SUFFIXES)}"
        raise UserValueError(path="--picture", expected=expected, got=str(path))
    check_writable(path, "--picture")
    return path


def at_least_one(text: str) -> int:
    """Parses the text of a flag as an integer of at least 1.

    Raises:
        argparse.ArgumentTypeError: if the text is something else.
    """
    if text.isdecimal() and int(text):
        return int(text)
    raise argparse.ArgumentTypeError(f"expected an integer of at least 1, got {text!r}")


def prices(text: str) -> list[float]:
    """Parses the text of a flag as numbers with commas between them.

    Raises:
        ValueError: if the text is something else.
    """
    return list(map(float, text.split(",")))


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = flag_parser("lingvo_pipe plan", __doc__)
    add = parser.add_argument
    model = parser.add_mutually_exclusive_group(required=True)
    model.add_argument("--model", help="name of a registered model")
    model.add_argument(
        "--largest", help="prefix of model names; plans the largest that fits"
    )
    model.add_argument(
        "--keras",
        help="module:function of a function that returns a Keras model",
    )
    model.add_argument(
        "--list_models", action="store_true", help="print the names of all models"
    )
    add("--model_imports", action="append", default=[], help="packages that register")
    add(
        "--model_params_override",
        default="",
        action=OnceAction,
        help="changes, as in the trainer",
    )
    add(
        "--devices",
        help="number and kind of devices: 8xTPUv3, 2x8xV100 on 2 hosts, "
        "8x80GB@312TFLOPS, 8xdevice.json; in order: 4xA100,4xT4",
    )
    add(
        "--price",
        type=prices,
        help="money for a device and an hour, or for one of each kind: 1.10,0.35",
    )
    add(
        "--network_gbits",
        type=float,
        help="gigabits per second between hosts, which a host's devices share; "
        "default: the vendor's server's",
    )
    add("--batch", type=at_least_one, help="rows of a mini-batch; default: the model's")
    add(
        "--length",
        type=at_least_one,
        help="with --keras: the size of the inputs' open dimensions, beside the rows",
    )
    add("--num_replicas", type=at_least_one, help="number of pipelines side by side")
    add("--num_stages", type=at_least_one, help="number of devices of each pipeline")
    add("--num_micro_batches", type=at_least_one, help="number for all replicas")
    add("--schedule", choices=SCHEDULES, help="schedule to use")
    add("--recompute", choices=POLICIES, help="recomputation policy to use")
    add("--offload", choices=OFFLOADS, help="whether activations wait on the host")
    add("--picture", help="file for the timeline of the first: .png, .pdf or .svg")
    options = parser.parse_args(arguments)
    packages = ",".join(options.model_imports).split(",")
    options.model_imports = list(filter(None, packages))
    if options.devices is None and not options.list_models:
        parser.error("--devices: expected a number and a kind, such as 8xTPUv3")
    if options.length is not None and options.keras is None:
        parser.error("--length: expected --keras; other models have lengths")
    return options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
