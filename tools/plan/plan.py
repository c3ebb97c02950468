"""Plans how to run a registered model, before any device is rented.

    tools/bazel run //tools:plan -- --model=lm.giant.L103 --devices=8xTPUv3
    tools/bazel run //tools:plan -- --largest=lm.giant --devices=8xTPUv3

Prints the fastest ways that fit into memory, what the others lack, and the trainer's
flags for the first. Nothing is allocated, and no device is needed; but with
`--devices=2xmeasured` this machine's are meant, and the model's cells are timed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from lingvo_pipe.fault_line import fault_line
from lingvo_pipe.quiet_startup import quiet_startup

with quiet_startup():
    import model_registry
    from lingvo_pipe.pipeline.schedules.recompute import POLICIES
    from lingvo_pipe.planner.candidate import SCHEDULES
    from lingvo_pipe.planner.constraints import Constraints
    from lingvo_pipe.planner.device_model import parse_devices
    from lingvo_pipe.planner.plan_report import report
    from tools.plan.at_least_one import at_least_one
    from tools.plan.largest import largest_that_fits
    from tools.plan.picture import draw_first, picture_path
    from tools.plan.planned_model import PlannedModel
    from tools.plan.rented import rented


# Which flag is for which attribute of Constraints.
_FLAGS = {
    "num_replicas": "--num_replicas",
    "num_devices": "--num_stages",
    "num_micro_batches": "--num_micro_batches",
    "schedule": "--schedule",
    "recompute": "--recompute",
}


def main(arguments: Sequence[str]) -> int:
    """Plans; returns the exit code."""
    options = _options(arguments)
    try:
        _plan(options)
    except Exception as error:
        line = str(error) if isinstance(error, ValueError) else fault_line(error)
        if line is None:
            raise
        print(f"error: {line}", file=sys.stderr)
        return 1
    return 0


def _plan(options: argparse.Namespace) -> None:
    picture = None if options.picture is None else picture_path(options.picture)
    devices = rented(*parse_devices(options.devices))
    model_registry.ImportModels(options.model_imports)
    constraints = _constraints(options)
    if options.largest is None:
        model = PlannedModel.registered(options.model, options.model_params_override)
        print(model.title(options.batch, devices), end="\n\n", flush=True)
        if devices.names:
            print("cells are timed, which may take minutes", file=sys.stderr)
        found = model.plan(devices, options.batch, constraints)
    else:
        model, found = largest_that_fits(
            options.largest,
            options.model_params_override,
            lambda each: each.plan(devices, options.batch, constraints),
            lambda line: print(line, flush=True),
        )
        print(f"\n{model.title(options.batch, devices)}\n")
    resources = model.resources(options.batch, devices)
    changes = [*_changes(options), *model.changes()]
    print(report(found, resources, "; ".join(changes)))
    if picture is not None:
        print(f"\n{draw_first(found, picture)}")


def _changes(options: argparse.Namespace) -> list[str]:
    """Those of the model's params that the trainer is to be told too."""
    batch = "" if options.batch is None else f"input.batch_size : {options.batch}"
    return list(filter(None, [options.model_params_override.rstrip("; "), batch]))


def _constraints(options: argparse.Namespace) -> Constraints:
    return Constraints(
        num_replicas=options.num_replicas,
        num_devices=options.num_stages,
        num_micro_batches=options.num_micro_batches,
        schedule=options.schedule,
        recompute=options.recompute,
        names=_FLAGS,
    )


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="plan",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--model", help="the name of a registered model")
    what.add_argument("--largest", help="of models whose names begin so, that fits")
    add("--model_imports", action="append", default=[], help="packages that register")
    add("--model_params_override", default="", help="changes, as of the trainer")
    add("--devices", required=True, help="how many of which kind: 8xTPUv3")
    add("--batch", type=at_least_one, help="rows of a mini-batch; else the model's own")
    add("--num_replicas", type=at_least_one, help="so many pipelines side by side")
    add("--num_stages", type=at_least_one, help="so many devices in each")
    add("--num_micro_batches", type=at_least_one, help="so many, of all replicas")
    add("--schedule", choices=SCHEDULES, help="this one")
    add("--recompute", choices=POLICIES, help="this policy")
    add("--picture", help="a file for the timeline of the first: .png, .pdf or .svg")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
