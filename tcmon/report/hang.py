"""Which rank stood where when a run hung, and which of them the others wait for."""

from collections.abc import Sequence
from dataclasses import dataclass

from tcmon.trace.records import Hang, Note


@dataclass(frozen=True, slots=True)
class Standing:
    """Where one process stood; `rank` is None outside of a distributed run."""

    rank: int | None
    hang: Hang


@dataclass(frozen=True, slots=True)
class HangSummary:
    """Where each process stood at its last hang, and the ranks that the others wait for, as far as that can be told."""

    standing: tuple[Standing, ...]
    blamed: tuple[int, ...]


def hang_of(processes: Sequence[tuple[int | None, Sequence[Note]]]) -> HangSummary | None:
    """What the notes of the processes, given by rank, say of a hang; None where they say nothing."""
    standing = []
    for rank, notes in processes:
        hangs = [note.hang for note in notes if note.hang is not None]
        if hangs:
            standing.append(Standing(rank, hangs[-1]))
    return HangSummary(tuple(standing), _blamed(standing)) if standing else None


def _blamed(standing: Sequence[Standing]) -> tuple[int, ...]:
    """The ranks that are in no collective while others are; else those behind in steps; else none."""
    ranks = [each for each in standing if each.rank is not None]
    busy = [each for each in ranks if each.hang.collective is None]
    if len(busy) == len(ranks):
        counted = [each.hang.n for each in ranks if each.hang.n is not None]
        behind = [each for each in ranks if each.hang.n is not None and each.hang.n < max(counted)]
        busy = behind if len(counted) == len(ranks) else []
    return tuple(sorted(each.rank for each in busy if each.rank is not None)) if len(busy) < len(ranks) else ()
