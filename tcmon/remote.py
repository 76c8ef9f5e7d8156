"""What runs in a process that `tcmon attach PID` and `tcmon detach PID` reach from outside."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tcmon.attached import Attached, watch
from tcmon.errors import TcmonError
from tcmon.namesakes import Namesakes
from tcmon.options import Options

ORIGIN = "tcmon attach"

_attached: Attached | None = None


def begin(options: Options) -> dict[str, Any]:
    """Watch this process; its run directory. Raises `TcmonError` as `tcmon.attach()`."""
    global _attached
    _attached = watch(options, ORIGIN)
    if sys.path and not sys.flags.safe_path:
        Namesakes(sys.path[0] or str(Path.cwd())).give_way()
    return {"run_dir": str(_attached.run_dir)}


def end() -> dict[str, Any]:
    """Stop watching this process; its run directory. Raises `TcmonError` if `begin` was not called."""
    if _attached is None or not _attached.attached:
        raise TcmonError("it is not watched by tcmon attach")
    _attached.finish()
    return {"run_dir": str(_attached.run_dir)}
