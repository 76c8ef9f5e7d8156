"""The `args` of recorded steps: what API calls were given and what they returned, described by type.

API calls are those of public functions and methods of torch's Python modules, of the modules of the program's model
(`forward`) and of optimizers (`step`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from pathlib import PurePath
from types import CodeType
from typing import Any

from orjson import Fragment

from tcmon.capture.listening import parameter_names
from tcmon.capture.owners import is_module, is_optimizer
from tcmon.capture.positions import Placed
from tcmon.capture.recorder import Equipment, Step
from tcmon.capture.values import Describer

_MOST = 20_000
"""Calls of which arguments are kept between two pauses of the recording; further ones are counted."""

_PRIVATE_BUT_API = frozenset(("_tensor",))
_NO_API = frozenset(("accelerator", "compiler", "fx", "overrides", "jit", "library", "package", "testing"))
"""Parts of torch whose functions are torch's own affair while a model is trained."""


class ArgsRecorder:
    """Records the `args` of a step, out of what the recorder of calls hears."""

    def __init__(self, equipment: Equipment) -> None:
        self.listener = ArgsListener(Describer(equipment.modules))
        equipment.call_reports.append(self)

    def start(self, step: Step) -> None:
        """The recorder of calls does that."""

    def pause(self, step: Step) -> None:
        """The recorder of calls does that."""

    def finish(self, step: Step, facts: dict[str, Any]) -> Iterable[dict[str, Any]]:
        """Nothing beyond the `records`."""
        return ()

    def discard(self, step: Step) -> None:
        """The recorder of calls does that."""

    def records(self, heard: Heard | None, placed: Placed, step: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """As `CallReport` has it."""
        if heard is None:
            return
        by_thread: dict[int, list[tuple[int, _Heard]]] = {}
        for each in heard.calls:
            position = placed(each.event, each.thread, each.code)
            if position is not None:
                by_thread.setdefault(each.thread, []).append((position, each))
        dropped = heard.dropped
        for thread, calls in by_thread.items():
            columns = _columns(calls)
            if dropped:
                columns["dropped"], dropped = dropped, 0
            yield {"kind": "args", **step, "thread": thread, **columns}


class _Heard:
    """One call."""

    __slots__ = ("arguments", "code", "event", "returned", "thread")

    def __init__(self, code: CodeType, event: int, thread: int, arguments: list[str]) -> None:
        self.code = code
        self.event = event
        self.thread = thread
        self.arguments = arguments
        self.returned: str | None = None


class Heard:
    """What was heard in one segment of the log."""

    def __init__(self) -> None:
        self.calls: list[_Heard] = []
        self.dropped = 0


class ArgsListener:
    """Describes the arguments of API calls as they start, and what they return as they end."""

    def __init__(self, describer: Describer) -> None:
        self._describe = describer.describe
        self._heard = Heard()
        self._open: dict[int, list[_Heard]] = {}
        """Calls that have not ended, by thread."""
        self._torch_folder: str | None = None
        self._past_overrides: Any = nullcontext

    def wants(self, code: CodeType, arguments: Mapping[str, Any]) -> bool:
        """As `Listener` has it."""
        if self._torch_folder is None:
            self._find_torch()
        first = arguments.get(code.co_varnames[0]) if code.co_argcount else None
        if (code.co_name == "forward" and is_module(first)) or (code.co_name == "step" and is_optimizer(first)):
            return True
        if self._torch_folder is None or not code.co_filename.startswith(self._torch_folder):
            return False
        path = PurePath(code.co_filename[len(self._torch_folder) :]).with_suffix("").parts
        return is_public(path, code.co_qualname)

    def started(self, code: CodeType, arguments: Mapping[str, Any], event: int, thread: int) -> None:
        """As `Listener` has it."""
        heard = self._heard
        if len(heard.calls) >= _MOST:
            heard.dropped += 1
            return
        describe = self._describe
        with self._past_overrides():
            told = [describe(arguments[name]) for name in names_of(code)]
        call = _Heard(code, event, thread, told)
        heard.calls.append(call)
        self._open.setdefault(thread, []).append(call)

    def ended(self, code: CodeType, thread: int, value: object, raised: bool) -> None:
        """As `Listener` has it."""
        calls = self._open.get(thread)
        if not calls:
            return
        if calls[-1].code is code:
            call = calls.pop()
        else:
            # Of a call that began before the recording, or in a pause; or ends of others went unheard in one.
            at = next((at for at in range(len(calls) - 1, -1, -1) if calls[at].code is code), None)
            if at is None:
                return
            call = calls[at]
            del calls[at:]
        if not raised:
            with self._past_overrides():
                call.returned = self._describe(value)

    def take(self) -> Heard | None:
        """What was heard; of calls that are open still, what they return may be added later."""
        heard, self._heard = self._heard, Heard()
        if len(self._open) > 100:  # threads that are gone
            self._open = {thread: calls for thread, calls in self._open.items() if calls}
        return heard if heard.calls or heard.dropped else None

    def _find_torch(self) -> None:
        torch = sys.modules.get("torch")
        file = None if torch is None else vars(torch).get("__file__")
        if type(file) is str:
            self._torch_folder = file.removesuffix("__init__.py")
            self._past_overrides = vars(sys.modules["torch._C"])["DisableTorchFunction"]


def is_public(path: tuple[str, ...], qualname: str) -> bool:
    """Whether a function of torch's, in the module of this path, is one that programs are meant to call."""
    modules = [each for each in path if each != "__init__"]
    if any(each.startswith("_") and each not in _PRIVATE_BUT_API for each in modules):
        return False
    if modules and modules[0] in _NO_API:
        return False
    return not any(each.startswith(("_", "<")) for each in qualname.split("."))


_names: dict[int, tuple[CodeType, tuple[str, ...]]] = {}


def names_of(code: CodeType) -> tuple[str, ...]:
    """As `parameter_names`, remembered by the code's identity."""
    known = _names.get(id(code))
    if known is None:
        known = _names[id(code)] = code, parameter_names(code)
    return known[1]


def _columns(calls: list[tuple[int, _Heard]]) -> dict[str, Any]:
    """The calls of one thread; names and values are kept once, and told by their numbers."""
    values: dict[str, int] = {}
    names: dict[int, int] = {}
    told: list[list[str]] = []
    rows: list[list[int]] = []
    returned: list[int] = []
    number = values.setdefault
    for _, call in calls:
        code = call.code
        which = names.get(id(code))
        if which is None:
            which = names[id(code)] = len(told)
            told.append(_shown_names(code))
        rows.append([which, *[number(text, len(values)) for text in call.arguments]])
        returned.append(-1 if call.returned is None else number(call.returned, len(values)))
    return {
        "call": [position for position, _ in calls],
        "names": told,
        "values": Fragment(f"[{','.join(values)}]"),
        "arguments": rows,
        "returned": returned,
    }


def _shown_names(code: CodeType) -> list[str]:
    """The names of a function's parameters, those that gather others with their stars."""
    gathers = {}
    at = code.co_argcount + code.co_kwonlyargcount
    if code.co_flags & 0x4:
        gathers[code.co_varnames[at]] = "*"
        at += 1
    if code.co_flags & 0x8:
        gathers[code.co_varnames[at]] = "**"
    return [gathers.get(name, "") + name for name in names_of(code)]
