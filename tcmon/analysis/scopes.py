"""What names mean in a piece of code, without running it: which code a call runs, what an object is.

A `Scope` answers for one code object. `ModuleScope` reads the code tree of a module (code objects lie in each other's
constants); `RuntimeScope` in `tcmon.analysis.live` looks at the objects of a running program.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from opcode import opmap
from types import CodeType
from typing import Protocol

from tcmon.analysis import evidence
from tcmon.analysis.evidence import Thing
from tcmon.analysis.expressions import (
    Attribute,
    BuildClass,
    Call,
    Element,
    Expr,
    Function,
    Group,
    Item,
    Module,
    Name,
    Super,
    names_in,
    path,
)
from tcmon.analysis.flowgraph import FlowGraph
from tcmon.analysis.reading import Reading, Store

_EXTENDED_ARG, _IMPORT_NAME = opmap["EXTENDED_ARG"], opmap["IMPORT_NAME"]
_DEPTH = 10
"""How many names are followed from one to the next."""
_COMMON = frozenset(
    name for kind in (dict, list, set, str, bytes, int, tuple) for name in vars(kind) if not name.startswith("__")
) | {"step", "eval", "train", "to", "cuda", "cpu", "log", "close", "reset", "item", "parameters", "state_dict", "run"}
"""Methods that many things have: which one is called is not told by the name."""


class Scope(Protocol):
    """The place of one code object, where its names are looked up."""

    @property
    def code(self) -> CodeType: ...

    @property
    def reading(self) -> Reading: ...

    @property
    def is_foreign(self) -> bool:
        """Whether the code trains with another framework than torch, if at all."""

    def callers(self) -> list[tuple[Scope, Call]]:
        """The calls in the program that run this code, as far as that can be told."""

    def callees(self, call: Call) -> list[Scope]:
        """The functions of the program that `call` runs, as far as that can be told."""

    def thing(self, expr: Expr) -> Thing | None:
        """What the object that `expr` means is known to be."""

    def origin(self, expr: Expr) -> Expr:
        """The one expression that a variable was assigned from, or `expr` itself."""

    def is_quiet(self) -> bool:
        """Whether the function is decorated with `no_grad()` or `inference_mode()`."""


@dataclass(frozen=True, slots=True)
class _Class:
    body: CodeType
    bases: tuple[Expr, ...]
    where: CodeType
    """The code that makes the class."""


@dataclass(frozen=True, slots=True)
class _Instance:
    of: _Class


type _Value = CodeType | _Class | _Instance


class Program:
    """The code tree of one module (or of one function, where the module is not known)."""

    def __init__(self, root: CodeType) -> None:
        self.root = root
        self.parents: dict[int, CodeType] = {}
        self.codes: list[CodeType] = [root]
        for code in self.codes:
            for constant in code.co_consts:
                if isinstance(constant, CodeType) and id(constant) not in self.parents:
                    self.parents[id(constant)] = code
                    self.codes.append(constant)
        self._readings: dict[int, Reading] = {}
        self._stores: dict[int, dict[str, list[Store]]] = {}
        self._scopes: dict[int, ModuleScope] = {}
        self._values: dict[int, list[_Value]] = {}

    def scope(self, code: CodeType) -> ModuleScope:
        """The scope of one code object of the tree."""
        if id(code) not in self._scopes:
            self._scopes[id(code)] = ModuleScope(self, code)
        return self._scopes[id(code)]

    def reading(self, code: CodeType) -> Reading:
        if id(code) not in self._readings:
            self._readings[id(code)] = Reading(FlowGraph(code))
        return self._readings[id(code)]

    @cached_property
    def is_of_other_framework(self) -> bool:
        """Whether the module imports a framework such as JAX and nothing of torch."""
        names = {name.partition(".")[0] for code in self.codes for name in _imported(code)}
        return bool(names & evidence.OTHER_FRAMEWORKS) and not any(evidence.TORCH.match(name) for name in names)

    # Names

    def values(self, expr: Expr, code: CodeType, depth: int = _DEPTH) -> Iterator[_Value]:
        """Functions, classes and instances of the program that `expr`, in `code`, may mean."""
        if depth <= 0:
            return
        match expr:
            case Function():
                yield expr.code
            case Name():
                for store, owner in self.assignments(expr, code):
                    yield from self._assigned_values(store, owner, depth)
            case Attribute():
                yield from self._members(expr, code, depth)
            case Group() if expr.is_display:
                for item in expr.items:
                    yield from self.values(item, code, depth - 1)
            case Item() | Element():
                of = expr.value if isinstance(expr, Item) else expr.of
                yield from (value for value in self.values(of, code, depth - 1) if not isinstance(value, _Instance))
            case Call(function=BuildClass(), args=(Function() as body, *_)):
                yield _Class(body.code, expr.args[2:], code)
            case Call():
                yield from self._results(expr, code, depth)

    def _assigned_values(self, store: Store, owner: CodeType, depth: int) -> list[_Value]:
        """What a variable may mean by one assignment; nothing while that is being found out (`x = f(x)`)."""
        key = id(store)
        if key not in self._values:
            self._values[key] = []
            self._values[key] = list(self.values(store.value, owner, depth - 1))
        return self._values[key]

    def _results(self, call: Call, code: CodeType, depth: int) -> Iterator[_Value]:
        known = False
        for called in self.values(call.function, code, depth - 1):
            known = True
            if isinstance(called, _Class):
                yield _Instance(called)
            elif isinstance(called, CodeType):
                for returned in self.reading(called).returns:
                    yield from self.values(returned, called, depth - 2)
        if call.args:
            # A decorator, `partial`, `torch.compile`, ...: calling the result calls the function in the end.
            decorated = [v for v in self.values(call.args[0], code, depth - 1) if isinstance(v, CodeType)]
            if not known or call.name == "partial" or isinstance(call.args[0], Function):
                yield from decorated

    def assignments(self, name: Name, code: CodeType) -> list[tuple[Store, CodeType]]:
        """The assignments to a variable as `code` sees it, each with the code in which it stands."""
        scope: CodeType | None = code
        if name.is_global and code.co_name != "<module>" and self._is_class(code):
            found = self.stores(code).get(name.id)
            if found:
                return [(store, code) for store in found]
        if name.is_global:
            return [(store, self.root) for store in self.stores(self.root).get(name.id, [])]
        while scope is not None:
            if name.id not in scope.co_freevars:
                return [(store, scope) for store in self.stores(scope).get(name.id, [])]
            scope = self.parents.get(id(scope))
        return []

    def stores(self, code: CodeType) -> dict[str, list[Store]]:
        """The assignments in `code` by the dotted name that is assigned to."""
        if id(code) not in self._stores:
            by_name: dict[str, list[Store]] = {}
            for store in self.reading(code).stores:
                by_name.setdefault(".".join(path(store.target)), []).append(store)
            self._stores[id(code)] = by_name
        return self._stores[id(code)]

    # Classes

    def _is_class(self, code: CodeType) -> bool:
        return "__qualname__" in code.co_names and "__module__" in code.co_names and not code.co_flags & 1

    @cached_property
    def _classes(self) -> list[_Class]:
        return [
            _Class(body.code, call.args[2:], code)
            for code in self.codes
            if code is self.root or any(isinstance(c, CodeType) and self._is_class(c) for c in code.co_consts)
            for call in self.reading(code).calls
            if isinstance(call.function, BuildClass) and call.args and isinstance(body := call.args[0], Function)
        ]

    def class_around(self, code: CodeType) -> _Class | None:
        """The class in whose body a method stands, also for a function within the method."""
        scope: CodeType | None = code
        while scope is not None:
            parent = self.parents.get(id(scope))
            if parent is not None and self._is_class(parent):
                return next((cls for cls in self._classes if cls.body is parent), None)
            scope = parent
        return None

    def _is_self(self, expr: Expr, code: CodeType) -> bool:
        """Whether `expr` is the first parameter of the method that `code` is or stands in."""
        if not isinstance(expr, Name) or expr.is_global:
            return False
        scope: CodeType | None = code
        while scope is not None and expr.id in scope.co_freevars:
            scope = self.parents.get(id(scope))
        if scope is None or scope.co_argcount == 0 or scope.co_varnames[0] != expr.id:
            return False
        parent = self.parents.get(id(scope))
        return parent is not None and self._is_class(parent)

    def _members(self, attribute: Attribute, code: CodeType, depth: int) -> Iterator[_Value]:
        receiver, name = attribute.value, attribute.name
        around = self.class_around(code)
        if isinstance(receiver, Super) and around is not None:
            for base in self._bases(around, depth):
                yield from self._member(base, name, depth)
            return
        if around is not None and self._is_self(receiver, code):
            found = list(self._member(around, name, depth))
            if not found:  # a method that a class derived from this one adds
                derived = [cls for cls in self._classes if around in self._bases(cls, depth)]
                found = [value for cls in derived for value in self._member(cls, name, depth)]
            yield from found
            return
        known = False
        for value in self.values(receiver, code, depth - 1):
            cls = value.of if isinstance(value, _Instance) else value
            if isinstance(cls, _Class):
                known = True
                yield from self._member(cls, name, depth)
        if not known and not isinstance(receiver, Module) and name not in _COMMON and not name.startswith("__"):
            yield from self._only_method(attribute, code)

    def _only_method(self, attribute: Attribute, code: CodeType) -> Iterator[_Value]:
        """The method of that name, if one class of the module alone has it."""
        root: Expr = attribute
        while isinstance(root, Attribute | Item):
            root = root.value
        if isinstance(root, Name) and any(_is_import(store.value) for store, _ in self.assignments(root, code)):
            return
        holders = [cls for cls in self._classes if attribute.name in self.stores(cls.body)]
        if len(holders) == 1:
            yield from self._member(holders[0], attribute.name, 3)

    def _bases(self, cls: _Class, depth: int) -> list[_Class]:
        """The classes of the module that `cls` derives from, nearest first."""
        found: list[_Class] = []
        pending = [cls]
        while pending and len(found) < _DEPTH:
            current = pending.pop(0)
            for base in current.bases:
                for value in self.values(base, current.where, depth - 1):
                    if isinstance(value, _Class) and value not in found and value != cls:
                        found.append(value)
                        pending.append(value)
        return found

    def _member(self, cls: _Class, name: str, depth: int) -> Iterator[_Value]:
        if depth <= 0:
            return
        for owner in (cls, *self._bases(cls, depth)):
            stores = self.stores(owner.body).get(name)
            if stores:
                for store in stores:
                    yield from self._assigned_values(store, owner.body, depth)
                return
        for owner in (cls, *self._bases(cls, depth)):
            found = list(self.attribute_assignments(owner, name))
            if found:
                for store, method in found:
                    yield from self._assigned_values(store, method, depth)
                return

    def attribute_assignments(self, cls: _Class, name: str) -> Iterator[tuple[Store, CodeType]]:
        """The assignments to `self.NAME` in the methods of a class."""
        for method in cls.body.co_consts:
            if isinstance(method, CodeType) and method.co_argcount and name in method.co_names:
                for store in self.stores(method).get(f"{method.co_varnames[0]}.{name}", []):
                    yield store, method

    def callables(self, call: Call, code: CodeType) -> list[CodeType]:
        """The code objects that a call runs."""
        found: list[CodeType] = []
        for value in self.values(call.function, code):
            if isinstance(value, CodeType):
                found.append(value)
            elif isinstance(value, _Instance):
                for name in ("__call__", "forward"):
                    methods = [m for m in self._member(value.of, name, _DEPTH) if isinstance(m, CodeType)]
                    found += methods
                    if methods:
                        break
        return list({id(each): each for each in found}.values())


class ModuleScope:
    """A `Scope` that reads the code tree of the module."""

    def __init__(self, program: Program, code: CodeType) -> None:
        self.program = program
        self._code = code
        self._is_asking = False
        self._callers: list[tuple[Scope, Call]] | None = None

    @property
    def code(self) -> CodeType:
        return self._code

    @property
    def reading(self) -> Reading:
        return self.program.reading(self._code)

    @property
    def is_foreign(self) -> bool:
        return self.program.is_of_other_framework

    def callers(self) -> list[tuple[Scope, Call]]:
        if self._callers is None:
            found = self._find_callers()
            if self._is_asking:
                return found
            self._callers = found
        return self._callers

    def _find_callers(self) -> list[tuple[Scope, Call]]:
        name = self._code.co_name
        found: list[tuple[Scope, Call]] = []
        for code in self.program.codes:
            if code is not self._code and name in (*code.co_names, *code.co_varnames, *code.co_freevars):
                scope = self.program.scope(code)
                found += [
                    (scope, call)
                    for call in scope.reading.calls
                    if name in names_in(call) and any(callee.code is self._code for callee in scope.callees(call))
                ]
        return found

    def callees(self, call: Call) -> list[Scope]:
        program = self.program
        codes = program.callables(call, self._code)
        if not codes and isinstance(call.function, Name):
            codes = self._handed_in(call.function.id)
        if not codes or call.name == "step":
            # A function that is handed to one from elsewhere is called by it: optimizer.step(closure)
            for arg in call.args:
                if isinstance(arg, Name | Attribute | Function):
                    codes += [v for v in program.values(arg, self._code, 4) if isinstance(v, CodeType)]
        return [program.scope(code) for code in codes if code is not self._code]

    def _handed_in(self, name: str) -> list[CodeType]:
        """The functions that callers of this code hand in as the parameter `name`."""
        code = self._code
        parameters = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        if name not in parameters or code is self.program.root or self._is_asking:
            return []
        self._is_asking = True
        try:
            callers = self.callers()
        finally:
            self._is_asking = False
        position = parameters.index(name) - (self.program.class_around(code) is not None)
        found: list[CodeType] = []
        for scope, call in callers:
            given = call.keywords.get(name) or (call.args[position] if 0 <= position < len(call.args) else None)
            if given is not None:
                found += [v for v in self.program.values(given, scope.code) if isinstance(v, CodeType)]
        return found

    def thing(self, expr: Expr) -> Thing | None:
        things = {evidence.thing_made_by(path(made.function)) for made in self._made(expr, 4) if isinstance(made, Call)}
        return things.pop() if len(things) == 1 else None

    def _made(self, expr: Expr, depth: int) -> Iterator[Expr]:
        """What was assigned to a variable or an attribute of `self`."""
        for store in self._assigned(expr):
            if isinstance(store.value, Name | Attribute) and depth:
                yield from self._made(store.value, depth - 1)
            else:
                yield store.value

    def _assigned(self, expr: Expr) -> list[Store]:
        program = self.program
        if isinstance(expr, Name):
            return [store for store, _ in program.assignments(expr, self._code)]
        if isinstance(expr, Attribute) and program._is_self(expr.value, self._code):
            around = program.class_around(self._code)
            if around is not None:
                owners = (around, *program._bases(around, 4))
                return [store for cls in owners for store, _ in program.attribute_assignments(cls, expr.name)]
        return []

    def origin(self, expr: Expr) -> Expr:
        stores = self._assigned(expr)
        return stores[0].value if len(stores) == 1 else expr

    def is_quiet(self) -> bool:
        parent = self.program.parents.get(id(self._code))
        while parent is not None and parent.co_name.startswith("<generic"):
            parent = self.program.parents.get(id(parent))
        if parent is None:
            return False
        return any(
            any(name in evidence.NO_GRAD for name in call.path)
            for call in self.program.reading(parent).calls
            if any(self._is_this(arg) for arg in call.args)
        )

    def _is_this(self, expr: Expr) -> bool:
        while isinstance(expr, Call) and expr.args:
            expr = expr.args[0]
        return isinstance(expr, Function) and expr.code is self._code


def _is_import(expr: Expr) -> bool:
    while isinstance(expr, Attribute):
        expr = expr.value
    return isinstance(expr, Module)


def _imported(code: CodeType) -> Iterator[str]:
    """Names of the modules that `code` imports."""
    units = code.co_code
    names = code.co_names
    prefix = 0
    for offset in range(0, len(units), 2):
        arg = prefix | units[offset + 1]
        prefix = arg << 8 if units[offset] == _EXTENDED_ARG else 0
        if units[offset] == _IMPORT_NAME:
            yield names[arg]
