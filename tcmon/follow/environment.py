"""What a process that is followed tells those that it starts, in variables of their environment."""

from __future__ import annotations

import base64
import dataclasses
import os
import pickle
import secrets
import sys
from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path

from tcmon.options import Options
from tcmon.session import Joins, Session

VARIABLE = "TCMON_FOLLOW"
RANKED = "TCMON_FOLLOW_RANK"
"""Set by a process that is a rank: its children inherit RANK, and are none."""

_SITE = str(Path(__file__).parent / "site")


@dataclass(frozen=True)
class Settings:
    """How processes are watched: `options.out` is the run directory, `launch` tells that it is theirs."""

    options: Options
    launch: str
    command: list[str]
    level: str


def follow(settings: Settings, environment: MutableMapping[str, str]) -> None:
    """Have the Pythons that get this environment watched."""
    where = [str(Path(__file__).parents[2]), *(entry for entry in sys.path if entry)]
    path = ",".join(entry.encode().hex() for entry in dict.fromkeys(where))
    text = base64.b64encode(pickle.dumps(settings)).decode()
    environment[VARIABLE] = f"{sys.implementation.cache_tag}:{path}:{text}"
    before = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = _SITE + (os.pathsep + before if before else "")


def follow_from(session: Session, joins: Joins, command: list[str], level: str) -> None:
    """Have the Pythons watched that this process starts, in the run directory of its session."""
    options = dataclasses.replace(session.options, out=session.run_dir, train_loop=None, eval_loop=None)
    rank = session.rank
    if rank is not None:
        os.environ[RANKED] = f"{rank.rank}.{rank.restart}"
    follow(Settings(options, joins.launch, command, level), os.environ)


def new_launch() -> str:
    """A name for what shares a run directory from now on."""
    return secrets.token_hex(8)


def settings_of(text: str) -> Settings:
    """What `follow` said. It comes from the environment, which may have a process do anything, of the same user."""
    settings = pickle.loads(base64.b64decode(text))
    assert isinstance(settings, Settings)
    return settings
