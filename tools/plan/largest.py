"""The largest model of a family that fits."""

from __future__ import annotations

from collections.abc import Callable

import model_registry
from lingvo_pipe.hyperparams.suggest import did_you_mean
from lingvo_pipe.planner.planning import NothingFits
from lingvo_pipe.planner.search import Found
from tools.plan.planned_model import PlannedModel


def largest_that_fits(
    family: str,
    override: str,
    plan: Callable[[PlannedModel], Found],
    say: Callable[[str], None],
) -> tuple[PlannedModel, Found]:
    """Plans models from the largest on, until one fits.

    Args:
        family: how their names begin.
        override: changes of their params.
        plan: raises NothingFits if a model does not fit.
        say: takes lines about each: which it is, and what it lacks.

    Raises:
        ValueError: if there is none of the family, none fits, or one can't be planned.
    """
    models = [PlannedModel.registered(name, override) for name in _names(family)]
    for model in sorted(models, key=lambda each: -each.num_parameters):
        say(f"{model.name}, {model.num_parameters:,} parameters:")
        try:
            return model, plan(model)
        except NothingFits as error:
            say(f"  {error}")
        except ValueError as error:
            raise ValueError(f"{model.name} can't be planned: {error}") from error
    raise ValueError(
        f"One of {family} must fit; none does, see above. Take more devices, or larger "
        "ones."
    )


def _names(family: str) -> list[str]:
    model_registry.ImportAll()
    every = model_registry.ListModels()
    found = [name for name in every if name.startswith(family)]
    if not found:
        raise ValueError(
            "--largest must be how names of registered models begin, such as lm.giant;"
            f" got {family!r}.{did_you_mean(family, every)} --model_imports takes the "
            "packages of other models; see --list_models of the trainer."
        )
    return found
