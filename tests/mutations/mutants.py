"""Mutants of the product: single faults in its source, drawn by seed."""

from __future__ import annotations

import functools
import hashlib
import random
import types
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mutations.operators import OPERATORS, Source, edits

FOLDERS = tuple(
    f"lingvo_pipe/{name}"
    for name in ("pipeline", "training", "keras", "planner", "input", "layers")
)


@dataclass(frozen=True)
class Mutant:
    """A fault: bytes `start` to `end` of the file at `path` become `text`.

    Attributes:
        operator: one of OPERATORS.
        lines: numbers of the first and the last line of the statement, or of the head
            of a statement with a body.
        key: a hash of the operator, of the statement as changed, and of how many such
            statements precede it, which other edits in the file leave as it is.
    """

    path: str
    operator: str
    start: int
    end: int
    text: str
    lines: tuple[int, int]
    key: str

    def apply(self, source: bytes) -> bytes:
        """Returns the file's new source."""
        return source[: self.start] + self.text.encode() + source[self.end :]


def mutants(path: str, source: bytes) -> Iterator[Mutant]:
    """Yields all mutants of a file. A few of them compile to the same code."""
    parsed = Source(source)
    seen = Counter[str]()
    for (operator, start, end, text), lines in edits(parsed):
        begin, stop = parsed.starts[lines[0] - 1], parsed.starts[lines[1]]
        old = parsed.text(start, end)
        changed = parsed.text(begin, start) + text + parsed.text(end, stop)
        words = " ".join([operator, *old.split(), *changed.split()])
        name = f"{words} {seen[words]}" if words in seen else words
        seen[words] += 1
        key = hashlib.sha256(name.encode()).hexdigest()[:10]
        yield Mutant(path, operator, start, end, text, lines, key)


def sample(
    root: Path, folders: Sequence[str], seed: int, number: int
) -> Iterator[Mutant]:
    """Yields mutants of folders by a seed: first an operator is drawn, then a place."""
    pools: dict[str, list[Mutant]] = {operator: [] for operator in OPERATORS}
    sources = {
        str(path.relative_to(root)): path.read_bytes()
        for folder in folders
        for path in sorted((root / folder).rglob("*.py"))
    }
    for path, source in sources.items():
        for mutant in mutants(path, source):
            pools[mutant.operator].append(mutant)
    draws = random.Random(seed)
    for pool in pools.values():
        draws.shuffle(pool)
    while number and any(pools.values()):
        pool = pools[draws.choice([name for name in OPERATORS if pools[name]])]
        mutant = pool.pop()
        if changes_code(mutant, sources[mutant.path]):
            yield mutant
            number -= 1


def changes_code(mutant: Mutant, source: bytes) -> bool:
    """Returns whether a mutant compiles, to other code than the source."""
    try:
        code = compile(mutant.apply(source), mutant.path, "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return _instructions(code) != _instructions_of(mutant.path, source)


@functools.lru_cache(maxsize=64)
def _instructions_of(path: str, source: bytes) -> tuple[object, ...]:
    return _instructions(compile(source, path, "exec", dont_inherit=True))


def _instructions(code: types.CodeType) -> tuple[object, ...]:
    """Returns what code does, without its places in the source."""
    constants = [
        _instructions(value) if isinstance(value, types.CodeType) else repr(value)
        for value in code.co_consts
    ]
    return (code.co_code, *constants, code.co_names, code.co_varnames)
