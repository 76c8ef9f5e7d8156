"""Writes directories of distributed runs by hand, with ranks that wait for each other as under DDP."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson
from trace_builder import encode, end, header, loop, meta

WORK = {"wait": 1_000, "forward": 5_000, "backward": 9_000, "optimizer": 2_000, "other": 500}

type Step = tuple[int, Mapping[str, int]]
type Late = Callable[[int, int, str], int]


def synchronised(ranks: int, steps: int, late: Late) -> dict[int, list[Step]]:
    """Begin and phases of the steps of each rank; `late(rank, n, phase)` comes on top of the work.

    No rank ends its backward pass before the last one does.
    """
    clock = dict.fromkeys(range(ranks), 0)
    taken: dict[int, list[Step]] = {rank: [] for rank in range(ranks)}
    for n in range(1, steps + 1):
        begin = dict(clock)
        phases: dict[int, dict[str, int]] = {rank: {} for rank in range(ranks)}
        for phase, work in WORK.items():
            for rank in range(ranks):
                phases[rank][phase] = work + late(rank, n, phase)
                clock[rank] += phases[rank][phase]
            if phase == "backward":
                together = max(clock.values())
                for rank in range(ranks):
                    phases[rank][phase] += together - clock[rank]
                    clock[rank] = together
        for rank in range(ranks):
            taken[rank].append((begin[rank], phases[rank]))
    return taken


def write_rank(
    directory: Path,
    rank: int,
    steps: Sequence[Step],
    *,
    world_size: int = 2,
    restart: int = 0,
    host: str = "elsewhere",
    start: int = 0,
    ended: bool = True,
    facts: bool = True,
) -> Path:
    """The files of one rank whose session began `start` after the first one's."""
    directory.mkdir(parents=True, exist_ok=True)
    pid = 4242 + 10 * restart + rank
    began = 1_796_000_000_000_000_000 + start
    if facts:
        name = "run.json" if rank == 0 else f"run-rank{rank}.json"
        about = meta(pid=pid, rank=rank, world_size=world_size, host=host, start_unix_ns=began)
        (directory / name).write_bytes(orjson.dumps(about))
    begins = [begin - start for begin, _ in steps]
    row: dict[str, Any] = {
        "kind": "steps",
        "role": "train",
        "stage": "training",
        "loop": 1,
        "first": 1,
        "begin": [begins[0], *(after - before for before, after in pairwise(begins))],
        "wait": [phases["wait"] for _, phases in steps],
        "end": [sum(phases.values()) for _, phases in steps],
        "phases": {name: [phases[name] for _, phases in steps] for name in ("forward", "backward", "optimizer")},
    }
    about_process = {
        "start_unix_ns": began,
        "start_uncertain_ns": 100 + rank,
        "host": host,
        "rank": rank,
        "local_rank": rank,
        "world_size": world_size,
        "restart": restart,
    }
    records = [header(pid) | about_process, loop(1), row, *([end()] if ended else [])]
    trace = directory / f"trace-rank{rank}.{restart}-{pid}.jsonl"
    trace.write_bytes(encode(records))
    return trace


def write_ranks(directory: Path, taken: Mapping[int, Sequence[Step]], **how: Any) -> Path:
    """The directory of a whole run. The ranks' sessions begin one after the other, before all steps."""
    for rank, steps in taken.items():
        write_rank(directory, rank, steps, world_size=len(taken), start=-7_777 * (len(taken) - rank), **how)
    return directory
