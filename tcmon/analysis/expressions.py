"""Expressions as the bytecode of a function builds them on its stack."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from types import CodeType


class Expr:
    """A part of an expression. Compared by identity; `str()` is close to how the source has it."""

    __slots__ = ()

    def parts(self) -> tuple[Expr, ...]:
        """The expressions that this one is directly built from."""
        return ()

    def __str__(self) -> str:
        return "..."


@dataclass(slots=True, eq=False)
class Unknown(Expr):
    """Anything that is not told apart further."""


@dataclass(slots=True, eq=False)
class Name(Expr):
    """A variable."""

    id: str
    is_global: bool
    """Looked up in globals, and not a variable of this function or one around it."""

    def __str__(self) -> str:
        return self.id


@dataclass(slots=True, eq=False)
class Constant(Expr):
    """A constant of the code."""

    value: object

    def __str__(self) -> str:
        return repr(self.value)


@dataclass(slots=True, eq=False)
class Attribute(Expr):
    """`value.name`."""

    value: Expr
    name: str
    line: int | None = None

    def parts(self) -> tuple[Expr, ...]:
        return (self.value,)

    def __str__(self) -> str:
        return f"{self.value}.{self.name}"


@dataclass(slots=True, eq=False)
class Super(Expr):
    """`super()`."""

    def __str__(self) -> str:
        return "super()"


@dataclass(slots=True, eq=False)
class Item(Expr):
    """`value[key]`."""

    value: Expr
    key: Expr

    def parts(self) -> tuple[Expr, ...]:
        return (self.value, self.key)

    def __str__(self) -> str:
        key = self.key
        return f"{self.value}[{key if isinstance(key, Name | Constant) else '...'}]"


@dataclass(slots=True, eq=False)
class Element(Expr):
    """What iterating over or unpacking `of` yields; `at` is the offset of the `FOR_ITER`, -1 for unpacking."""

    of: Expr
    at: int

    def parts(self) -> tuple[Expr, ...]:
        return (self.of,)


@dataclass(slots=True, eq=False)
class Group(Expr):
    """A tuple, list, set or the values of a dict that is written out; or an operation on its `items`."""

    items: tuple[Expr, ...]
    is_display: bool = True

    def parts(self) -> tuple[Expr, ...]:
        return self.items


@dataclass(slots=True, eq=False)
class Operation(Expr):
    """A binary operation; `sign` as the source has it, "-=" for one that works in place."""

    left: Expr
    sign: str
    right: Expr
    offset: int
    line: int | None

    def parts(self) -> tuple[Expr, ...]:
        return (self.left, self.right)

    def __str__(self) -> str:
        return f"{self.left} {self.sign} {self.right}"


@dataclass(slots=True, eq=False)
class Function(Expr):
    """A function or lambda made here, or the body of a class."""

    code: CodeType


@dataclass(slots=True, eq=False)
class BuildClass(Expr):
    """What is called to make a class."""


@dataclass(slots=True, eq=False)
class Module(Expr):
    """An imported module, by its full name."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(slots=True, eq=False)
class Call(Expr):
    """A call, as an expression and as an event at a place of the code."""

    function: Expr
    args: tuple[Expr, ...]
    keywords: dict[str, Expr]
    offset: int
    """Where the call happens."""
    line: int | None
    """The line on which the called name stands."""
    path: tuple[str, ...] = field(init=False)
    """The dotted name that is called. A call or a subscript within it keeps the name before it."""

    def __post_init__(self) -> None:
        self.path = path(self.function)

    @property
    def name(self) -> str:
        return self.path[-1] if self.path else ""

    @property
    def receiver(self) -> str | None:
        """The last name before the called one, or None for a plain call."""
        return self.path[-2] if len(self.path) > 1 else None

    @property
    def target(self) -> Expr | None:
        """The object whose method is called, or None for a plain call."""
        return self.function.value if isinstance(self.function, Attribute) else None

    def arguments(self) -> Iterator[Expr]:
        yield from self.args
        yield from self.keywords.values()

    def parts(self) -> tuple[Expr, ...]:
        return (self.function, *self.args, *self.keywords.values())

    def __str__(self) -> str:
        """With its arguments where they are one or two plain names: `scaler.step(optimizer)`."""
        shown = [str(arg) for arg in self.args if is_dotted(arg)]
        if self.keywords or len(shown) != len(self.args) or len(shown) > 2:
            shown = []
        return f"{self.function}({', '.join(shown)})"


def path(expr: Expr) -> tuple[str, ...]:
    """The names of a dotted name, first to last, through calls and subscripts; () for what has no name."""
    names: list[str] = []
    while True:
        match expr:
            case Name():
                names.append(expr.id)
                break
            case Module():
                names += reversed(expr.name.split("."))
                break
            case Attribute():
                names.append(expr.name)
                expr = expr.value
            case Item():
                expr = expr.value
            case Call():
                expr = expr.function
            case Element() if expr.at < 0:
                expr = expr.of
            case Super():
                names.append("super")
                break
            case _:
                break
    return tuple(reversed(names))


def is_dotted(expr: Expr) -> bool:
    """Whether an expression is a name with nothing but attributes."""
    while isinstance(expr, Attribute):
        expr = expr.value
    return isinstance(expr, Name)


def within(expr: Expr, depth: int = 12) -> Iterator[Expr]:
    """An expression and all that it is built from."""
    yield expr
    if depth:
        for part in expr.parts():
            yield from within(part, depth - 1)


def names_in(expr: Expr) -> Iterator[str]:
    """All names of variables and attributes in an expression."""
    for part in within(expr):
        if isinstance(part, Name):
            yield part.id
        elif isinstance(part, Attribute | Module):
            yield part.name


def ends_in(expr: Expr) -> Iterator[str]:
    """The last names of the dotted names in an expression, and of a method's object: `a.val.items()` is over `val`."""
    if isinstance(expr, Attribute):
        yield expr.name
        return
    if isinstance(expr, Call) and isinstance(expr.function, Attribute):
        yield expr.function.name
        yield from ends_in(expr.function.value)
        for argument in expr.arguments():
            yield from ends_in(argument)
        return
    if isinstance(expr, Name):
        yield expr.id
    for part in expr.parts():
        yield from ends_in(part)
