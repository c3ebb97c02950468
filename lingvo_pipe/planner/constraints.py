"""What a user has settled of how to run a model. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from lingvo_pipe.planner.candidate import Candidate


@dataclasses.dataclass(frozen=True)
class Constraints:
    """What candidates must be like; None: anything. Attributes are those of Candidate.

    Attributes:
        num_replicas: R.
        num_devices: K, of a replica.
        num_micro_batches: M, of all replicas.
        schedule: its name.
        recompute: a policy.
        has_own_recompute: True: that of the schedule.
    """

    num_replicas: int | None = None
    num_devices: int | None = None
    num_micro_batches: int | None = None
    schedule: str | None = None
    recompute: str | None = None
    has_own_recompute: bool | None = None

    def allowed(self, candidates: Iterable[Candidate]) -> list[Candidate]:
        """Those candidates that are like this.

        Raises:
            ValueError: if there is none, naming the constraints that forbid all.
        """
        every = list(candidates)
        found = [each for each in every if self._allows(each)]
        if not found:
            raise ValueError(self._contradiction(every))
        return found

    @property
    def _given(self) -> dict[str, int | str]:
        given = dataclasses.asdict(self)
        return {name: value for name, value in given.items() if value is not None}

    def _allows(self, candidate: Candidate) -> bool:
        return all(getattr(candidate, name) == x for name, x in self._given.items())

    def _contradiction(self, every: Sequence[Candidate]) -> str:
        asked = " and ".join(f"{name}={value}" for name, value in self._given.items())
        ways = [
            f"without {name} it may be {_shown(values)}"
            for name in self._given
            if (values := self._values(name, every))
        ]
        return (
            "What is asked for must be possible together: replicas divide the devices "
            "and the micro-batches, micro-batches the rows, there is a cell for each "
            "stage, interleaved needs rounds of as many micro-batches as devices, and "
            f"zero_bubble recomputes nothing. There is no way with {asked}: "
            f"{'; '.join(ways) or 'leave several of them out'}."
        )

    def _values(self, name: str, every: Sequence[Candidate]) -> list[int | str]:
        """What an attribute may be where the others are as asked for."""
        others = dataclasses.replace(self, **{name: None})
        return list({getattr(x, name): None for x in every if others._allows(x)})


def _shown(values: Sequence[int | str]) -> str:
    return " or ".join(map(str, values))
