"""Which rank of a distributed run a process is, told by the variables that torch's launchers set.

All ranks of one launch must come to the same run directory without talking to each other, so what they agree on is
taken from their environment alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath

_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]+")
_LONGEST_LAUNCH = 80


@dataclass(frozen=True, slots=True)
class Rank:
    """A process of a distributed run.

    `restart` counts how often an elastic launcher has started the ranks anew. `launch` is the same text in all
    processes of one launch, and in those of no other; None where the environment does not tell them apart.
    """

    rank: int
    local_rank: int | None
    world_size: int
    restart: int
    launch: str | None

    @property
    def stem(self) -> str:
        """What the names of this rank's files begin with, apart from those of other ranks, hosts and restarts."""
        return f"rank{self.rank}.{self.restart}-"


def rank_from(environment: Mapping[str, str]) -> Rank | None:
    """The rank that RANK and WORLD_SIZE tell; None where they are missing or make no sense."""
    rank, world_size = _number(environment, "RANK"), _number(environment, "WORLD_SIZE")
    if rank is None or world_size is None or rank >= world_size:
        return None
    restart = _number(environment, "TORCHELASTIC_RESTART_COUNT") or 0
    return Rank(rank, _number(environment, "LOCAL_RANK"), world_size, restart, _launch(environment))


def _launch(environment: Mapping[str, str]) -> str | None:
    """A name of the launch.

    On one host it is the folder that torchrun makes anew for the logs of its workers, whose name begins with the run
    id and which outlasts restarts. On several hosts, where each torchrun makes its own, it is the run id, which the
    user must choose anew for each run; without one, the address at which the ranks meet.
    """
    run_id = environment.get("TORCHELASTIC_RUN_ID")
    if run_id is None:
        return None
    logs = PurePath(environment.get("TORCHELASTIC_ERROR_FILE", "")).parts
    if environment.get("GROUP_WORLD_SIZE") == "1" and len(logs) > 4 and logs[-3].startswith("attempt_"):
        name = logs[-4].removeprefix("none_")
    elif run_id != "none":
        name = run_id
    else:
        name = f"{environment.get('MASTER_ADDR', '')}-{environment.get('MASTER_PORT', '')}"
    return _UNSAFE.sub("-", name)[:_LONGEST_LAUNCH].strip(".-") or None


def _number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None
