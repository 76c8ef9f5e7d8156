"""What names mean in a running program: the objects themselves are looked at, and none of the program's code is run.

Attributes are found as `inspect.getattr_static` finds them: in the dictionaries of instances and classes. No
`__getattr__`, property, `__class__` or metaclass of the program is asked.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Mapping
from functools import cached_property, partial
from types import CodeType, FunctionType, GetSetDescriptorType, MethodType
from typing import Any

from tcmon.analysis import evidence
from tcmon.analysis.evidence import Thing
from tcmon.analysis.expressions import Attribute, Call, Constant, Expr, Item, Name
from tcmon.analysis.flowgraph import FlowGraph
from tcmon.analysis.reading import Reading
from tcmon.analysis.scopes import Scope

_MISSING: Any = object()
_DEPTH = 8
_mro = type.__dict__["__mro__"].__get__
_name = type.__dict__["__name__"].__get__
_class_dict = type.__dict__["__dict__"].__get__


class RuntimeScope:
    """A `Scope` that looks names up among the objects of a running program, and then in `static`, if there is one.

    `variables` are those of the running frame or of the function's closure by name, `names` its globals.
    """

    def __init__(
        self,
        code: CodeType,
        names: Mapping[str, object],
        variables: Mapping[str, object] | None = None,
        static: Scope | None = None,
    ) -> None:
        self._code = code
        self._globals = names
        self._variables = variables or {}
        self._static = static

    @property
    def code(self) -> CodeType:
        return self._code

    @cached_property
    def reading(self) -> Reading:
        return self._static.reading if self._static is not None else Reading(FlowGraph(self._code))

    @property
    def is_foreign(self) -> bool:
        return self._static is not None and self._static.is_foreign

    def callers(self) -> list[tuple[Scope, Call]]:
        return self._static.callers() if self._static is not None else []

    def callees(self, call: Call) -> list[Scope]:
        functions = list(_functions(self._object(call.function)))
        if call.name == "step":
            functions += [function for arg in call.args for function in _functions(self._object(arg))]
        found: list[Scope] = [
            RuntimeScope(function.__code__, function.__globals__, _closure(function))
            for function in functions
            if function.__code__ is not self._code
        ]
        if not found and self._static is not None:
            return self._static.callees(call)
        return found

    def thing(self, expr: Expr) -> Thing | None:
        value = self._object(expr)
        if value is not _MISSING and (known := evidence.thing_of_type(_types(type(value)))) is not None:
            return known
        return self._static.thing(expr) if self._static is not None else None

    def origin(self, expr: Expr) -> Expr:
        return self._static.origin(expr) if self._static is not None else expr

    def is_quiet(self) -> bool:
        return self._static is not None and self._static.is_quiet()

    def _object(self, expr: Expr) -> Any:
        match expr:
            case Name():
                for place in (self._variables, self._globals, vars(builtins)):
                    if expr.id in place:
                        return place[expr.id]
            case Attribute():
                value = self._object(expr.value)
                return _MISSING if value is _MISSING else _attribute(value, expr.name)
            case Item(key=Constant(value=str() | int() as key)):
                return _item(self._object(expr.value), key)
        return _MISSING


def _item(container: Any, key: str | int) -> Any:
    kind = type(container)
    if kind is dict:
        return container.get(key, _MISSING)
    if (kind is list or kind is tuple) and isinstance(key, int) and -len(container) <= key < len(container):
        return container[key]
    return _MISSING


def _attribute(value: Any, name: str) -> Any:
    """An attribute as it is stored: a function and not a method, a property and not its value."""
    kind = type(value)
    if _is_metaclass(kind):
        return _in_classes(value, name)
    own = _dict(value)
    if own is not None:
        if name in own:
            return own[name]
        modules = own.get("_modules")  # where torch keeps what is assigned to a module
        if type(modules) is dict and name in modules:
            return modules[name]
    return _in_classes(kind, name)


def _is_metaclass(kind: type) -> bool:
    # Compared by identity: a metaclass may define what equality does.
    return any(each is type for each in _mro(kind))


def _in_classes(cls: Any, name: str) -> Any:
    for each in _mro(cls):
        found = _class_dict(each).get(name, _MISSING)
        if found is not _MISSING:
            return found
    return _MISSING


def _dict(value: Any) -> dict[str, Any] | None:
    """The dictionary of an instance, if it has one that is no invention of its class."""
    found = _in_classes(type(value), "__dict__")
    if type(found) is not GetSetDescriptorType:
        return None
    own = found.__get__(value)
    return own if type(own) is dict else None


def _functions(value: Any, depth: int = _DEPTH) -> Iterator[FunctionType]:
    """The functions written in Python that a call of `value` runs."""
    if value is _MISSING or not depth:
        return
    kind = type(value)
    if kind is FunctionType:
        yield value
        wrapped = (_dict(value) or {}).get("__wrapped__", _MISSING)
        yield from _functions(wrapped, depth - 1)
    elif kind is MethodType or kind is staticmethod or kind is classmethod:
        yield from _functions(value.__func__, depth - 1)
    elif kind is partial:
        yield from _functions(value.func, depth - 1)
    elif not _is_metaclass(kind):  # an instance; the making of one trains nothing
        name = "forward" if evidence.thing_of_type(_types(kind)) is Thing.MODEL else "__call__"
        called = _in_classes(kind, name)
        if type(called) is FunctionType:
            yield from _functions(called, depth - 1)


def _closure(function: FunctionType) -> dict[str, object]:
    """The variables of the functions around that a function uses, as far as they have a value yet."""
    variables: dict[str, object] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            variables[name] = cell.cell_contents
        except ValueError:
            continue
    return variables


def _types(kind: type) -> tuple[tuple[str, str], ...]:
    """Module and name of a type and of its bases."""
    found = []
    for each in _mro(kind):
        module = _class_dict(each).get("__module__")
        found.append((module if type(module) is str else "", _name(each)))
    return tuple(found)
