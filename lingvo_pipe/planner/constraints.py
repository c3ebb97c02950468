"""What a user has settled of how to run a model. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lingvo_pipe.planner.candidate import Candidate

_OWN = "has_own_recompute"


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
        names: what users know these by, where it is something else.
    """

    num_replicas: int | None = None
    num_devices: int | None = None
    num_micro_batches: int | None = None
    schedule: str | None = None
    recompute: str | None = None
    has_own_recompute: bool | None = None
    names: Mapping[str, str] = dataclasses.field(default_factory=dict, compare=False)

    def allowed(
        self, candidates: Iterable[Candidate], rules: Sequence[str] = ()
    ) -> list[Candidate]:
        """Those candidates that are like this.

        Args:
            candidates: to choose from.
            rules: by which these were made, beside those that always hold.

        Raises:
            ValueError: if there is none, naming the constraints that forbid all.
        """
        every = list(candidates)
        found = [each for each in every if self._allows(each)]
        if not found:
            raise ValueError(self._contradiction(every, rules))
        return found

    @property
    def given(self) -> dict[str, int | str]:
        """What is settled, by the names of these attributes."""
        every = {x.name: getattr(self, x.name) for x in dataclasses.fields(self)}
        del every["names"]
        return {name: value for name, value in every.items() if value is not None}

    @property
    def numbers(self) -> list[int]:
        """Those of `given` that are numbers."""
        given = (self.num_replicas, self.num_devices, self.num_micro_batches)
        return [number for number in given if number is not None]

    def without(self, name: str) -> Constraints:
        """The same with one of them left open."""
        nothing: dict[str, Any] = {name: None}
        return dataclasses.replace(self, **nothing)

    def shown(self, name: str) -> str:
        """One that is given, as users write it."""
        value = None if name == _OWN else self.given[name]
        return f"{self._name(name)}={value}"

    def _name(self, name: str) -> str:
        name = "recompute" if name == _OWN else name
        return self.names.get(name, name)

    def _allows(self, candidate: Candidate) -> bool:
        return all(getattr(candidate, name) == x for name, x in self.given.items())

    def _contradiction(self, every: Sequence[Candidate], rules: Sequence[str]) -> str:
        asked = " and ".join(map(self.shown, self.given))
        ways = [
            f"without {self._name(name)} it may be {_shown(values)}"
            for name in self.given
            if (values := self._values(name, every))
        ]
        return (
            "What is asked for must be possible together: all replicas have no more "
            "devices than there are, they divide the micro-batches, micro-batches the "
            "rows, there is a cell for each stage, interleaved needs rounds of as many "
            "micro-batches as devices, zero_bubble recomputes nothing, and it and "
            f"interleaved are for several devices{''.join(f'; {x}' for x in rules)}. "
            f"There is no way with {asked}: "
            f"{'; '.join(ways) or 'leave several of them out'}."
        )

    def _values(self, name: str, every: Sequence[Candidate]) -> list[int | str]:
        """What an attribute may be where the others are as asked for."""
        others = self.without(name)
        shown = "recompute" if name == _OWN else name
        return list({getattr(x, shown): None for x in every if others._allows(x)})


def _shown(values: Sequence[int | str]) -> str:
    *most, last = map(str, values)
    return f"{', '.join(most)} or {last}" if most else last
