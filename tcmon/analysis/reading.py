"""What the code of a function says, statement by statement: calls, assignments, loops' iterators, `with`, `return`.

The stack of the interpreter is followed through each block of the flow graph, with expressions in the place of values.
Where blocks meet, the first way in counts; what a handler finds on its stack is unknown. That is exact for all that is
asked here, for a name that is called and its arguments mostly come from one block.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from dataclasses import dataclass
from opcode import opmap
from types import CodeType

from tcmon.analysis.expressions import (
    Attribute,
    BuildClass,
    Call,
    Constant,
    Element,
    Expr,
    Function,
    Group,
    Item,
    Module,
    Name,
    Operation,
    Super,
    Unknown,
    path,
)
from tcmon.analysis.flowgraph import FlowGraph, Instruction

_NULL = Unknown()
_UNKNOWN = Unknown()
_SIGNS = ("+", "&", "//", "<<", "@", "*", "%", "|", "**", ">>", "-", "/", "^")
_SUBSCRIPT = 2 * len(_SIGNS)
_ENTERING = frozenset({0, 2})
"""Arguments of LOAD_SPECIAL that mean `__enter__` and `__aenter__`."""
_KEEP_TOP = ("TO_BOOL", "GET_ITER", "GET_AWAITABLE", "GET_AITER", "GET_YIELD_FROM_ITER", "CALL_INTRINSIC_1")
_ELEMENTS = ("LIST_APPEND", "SET_ADD", "MAP_ADD")


@dataclass(slots=True, eq=False)
class Store:
    """An assignment of `value` to `target`, which is a Name, an Attribute or an Item."""

    target: Expr
    value: Expr
    offset: int
    line: int | None


@dataclass(slots=True, eq=False)
class With:
    """Where the context manager `value` is entered."""

    value: Expr
    offset: int
    line: int | None


class Reading:
    """The statements of one code object, each list in the order of the bytecode."""

    def __init__(self, graph: FlowGraph) -> None:
        self.graph = graph
        self.code = graph.code
        self.calls: list[Call] = []
        self.stores: list[Store] = []
        self.operations: list[Operation] = []
        """Operations in place, `a -= b`."""
        self.withs: list[With] = []
        self.returns: list[Expr] = []
        self.iterators: dict[int, Expr] = {}
        """By the offset of the `FOR_ITER` or `GET_ANEXT`."""
        self.collects: list[int] = []
        """Offsets at which a comprehension adds an element to what it makes."""
        self.grads: list[int] = []
        """Offsets at which an attribute `grad` is read."""
        self._stack: list[Expr] = []
        self._keywords: tuple[str, ...] = ()
        code = self.code
        cells = tuple(name for name in code.co_cellvars if name not in code.co_varnames)
        self._locals = (*code.co_varnames, *cells, *code.co_freevars)
        entries: dict[int, list[Expr]] = {}
        for block in graph.blocks:
            if block.index not in graph.reachable:
                continue
            self._stack = entries.pop(block.index, [])
            for instruction in block.instructions:
                handler = _HANDLERS.get(instruction.name)
                if handler is None:
                    handler = _HANDLERS[instruction.name] = _handler(instruction.name)
                handler(self, instruction)
            for successor in block.successors:
                if successor > block.index and successor not in entries:
                    entries[successor] = self._stack.copy()

    # The stack

    def _pop(self) -> Expr:
        return self._stack.pop() if self._stack else _UNKNOWN

    def _take(self, count: int) -> list[Expr]:
        """The topmost `count` values, lowest first."""
        taken = [self._pop() for _ in range(count)]
        taken.reverse()
        return taken

    def _top(self, depth: int = 1) -> Expr:
        return self._stack[-depth] if len(self._stack) >= depth else _UNKNOWN

    def _push(self, *values: Expr) -> None:
        self._stack += values

    # Loading

    def _local(self, index: int) -> Name:
        return Name(self._locals[index], False)

    def _load_local(self, i: Instruction) -> None:
        self._push(self._local(i.arg))

    def _load_two_locals(self, i: Instruction) -> None:
        self._push(self._local(i.arg >> 4), self._local(i.arg & 15))

    def _load_global(self, i: Instruction) -> None:
        self._push_callee(Name(self.code.co_names[i.arg >> 1], True), i.arg & 1)

    def _load_name(self, i: Instruction) -> None:
        self._push(Name(self.code.co_names[i.arg], True))

    def _load_from_dict(self, i: Instruction) -> None:
        self._pop()
        is_global = i.name == "LOAD_FROM_DICT_OR_GLOBALS"
        self._push(Name(self.code.co_names[i.arg], True) if is_global else self._local(i.arg))

    def _load_attribute(self, i: Instruction) -> None:
        value = self._pop()
        attribute = Attribute(value, self.code.co_names[i.arg >> 1], i.line)
        if attribute.name == "grad" and path(value)[-1:] != ("autograd",):
            self.grads.append(i.offset)
        self._push_callee(attribute, i.arg & 1)

    def _load_super_attribute(self, i: Instruction) -> None:
        self._take(3)
        self._push_callee(Attribute(Super(), self.code.co_names[i.arg >> 2], i.line), i.arg & 1)

    def _push_callee(self, value: Expr, is_called: int) -> None:
        """With the NULL that marks what is called; on 3.12 it comes first, for `module.` may be followed by a name."""
        if not is_called:
            self._push(value)
        elif sys.version_info < (3, 13):
            self._push(_NULL, value)
        else:
            self._push(value, _NULL)

    def _load_constant(self, i: Instruction) -> None:
        self._push(Constant(self.code.co_consts[i.arg]))

    def _load_small_int(self, i: Instruction) -> None:
        self._push(Constant(i.arg))

    def _load_special(self, i: Instruction) -> None:
        value = self._pop()
        if i.arg in _ENTERING:
            self.withs.append(With(value, i.offset, i.line))
        self._push(Attribute(value, "__enter__" if i.arg in _ENTERING else "__exit__", i.line), _NULL)

    def _push_null(self, i: Instruction) -> None:
        self._push(_NULL)

    def _load_build_class(self, i: Instruction) -> None:
        self._push(BuildClass())

    def _import(self, i: Instruction) -> None:
        self._take(2)
        self._push(Module(self.code.co_names[i.arg]))

    def _import_from(self, i: Instruction) -> None:
        module, name = self._top(), self.code.co_names[i.arg]
        if isinstance(module, Module) and module.name.endswith(f".{name}"):
            self._push(module)  # import a.b as c
        else:
            self._push(Attribute(module, name, i.line))

    # Moving

    def _nothing(self, i: Instruction) -> None:
        pass

    def _pop_top(self, i: Instruction) -> None:
        self._pop()

    def _copy(self, i: Instruction) -> None:
        self._push(self._top(i.arg))

    def _swap(self, i: Instruction) -> None:
        stack = self._stack
        if len(stack) >= i.arg:
            stack[-1], stack[-i.arg] = stack[-i.arg], stack[-1]

    def _end_for(self, i: Instruction) -> None:
        self._take(2 if sys.version_info < (3, 13) else 1)

    def _end_send(self, i: Instruction) -> None:
        value = self._pop()
        awaited = self._pop()
        # What is awaited stands for its result.
        self._push(awaited if isinstance(awaited, Call | Element) else value)

    # Storing

    def _store(self, target: Expr, value: Expr, i: Instruction) -> None:
        self.stores.append(Store(target, value, i.offset, i.line))

    def _store_local(self, i: Instruction) -> None:
        self._store(self._local(i.arg), self._pop(), i)

    def _store_name(self, i: Instruction) -> None:
        self._store(Name(self.code.co_names[i.arg], True), self._pop(), i)

    def _store_two_locals(self, i: Instruction) -> None:
        self._store(self._local(i.arg >> 4), self._pop(), i)
        self._store(self._local(i.arg & 15), self._pop(), i)

    def _store_load_local(self, i: Instruction) -> None:
        self._store(self._local(i.arg >> 4), self._pop(), i)
        self._push(self._local(i.arg & 15))

    def _store_attribute(self, i: Instruction) -> None:
        owner = self._pop()
        self._store(Attribute(owner, self.code.co_names[i.arg], i.line), self._pop(), i)

    def _store_item(self, i: Instruction) -> None:
        key = self._pop()
        container = self._pop()
        self._store(Item(container, key), self._pop(), i)

    def _unpack(self, i: Instruction) -> None:
        value = self._pop()
        count = i.arg if i.name == "UNPACK_SEQUENCE" else (i.arg & 0xFF) + 1 + (i.arg >> 8)
        if isinstance(value, Group) and value.is_display and len(value.items) == count:
            self._push(*reversed(value.items))
        else:
            self._push(*[Element(value, value.at if isinstance(value, Element) else -1)] * count)

    # Building

    def _operation(self, i: Instruction) -> None:
        left, right = self._take(2)
        if i.arg >= _SUBSCRIPT:
            self._push(Item(left, right))
            return
        in_place = i.arg >= len(_SIGNS)
        operation = Operation(left, _SIGNS[i.arg % len(_SIGNS)] + "=" * in_place, right, i.offset, i.line)
        if in_place:
            self.operations.append(operation)
        self._push(operation)

    def _subscript(self, i: Instruction) -> None:
        left, right = self._take(2)
        self._push(Item(left, right))

    def _slice(self, i: Instruction) -> None:
        value, *ends = self._take(3)
        self._push(Item(value, Group(tuple(ends))))

    def _compare(self, i: Instruction) -> None:
        self._push(Group(tuple(self._take(2)), False))

    def _unary(self, i: Instruction) -> None:
        self._push(Group((self._pop(),), False))

    def _display(self, i: Instruction) -> None:
        self._push(Group(tuple(self._take(i.arg))))

    def _string(self, i: Instruction) -> None:
        self._take(i.arg)
        self._push(_UNKNOWN)

    def _map(self, i: Instruction) -> None:
        self._push(Group(tuple(self._take(2 * i.arg)[1::2])))

    def _constant_key_map(self, i: Instruction) -> None:
        self._pop()
        self._push(Group(tuple(self._take(i.arg))))

    def _extend(self, i: Instruction) -> None:
        added = self._pop()
        below = len(self._stack) - i.arg
        if below >= 0:
            group = self._stack[below]
            items = group.items if isinstance(group, Group) else (group,)
            more = added.items if isinstance(added, Group) and added.is_display else (added,)
            self._stack[below] = Group((*items, *more))

    def _append(self, i: Instruction) -> None:
        self._take(2 if i.name == "MAP_ADD" else 1)
        # [*a, b] is built with an argument of 1; a comprehension has its iterator in between.
        if i.arg > 1:
            self.collects.append(i.offset)

    def _make_function(self, i: Instruction) -> None:
        made = self._pop()
        if i.name == "MAKE_FUNCTION" and sys.version_info < (3, 13):
            self._take(i.arg.bit_count())
        code = made.value if isinstance(made, Constant) else None
        self._push(Function(code) if isinstance(code, CodeType) else _UNKNOWN)

    def _set_function_attribute(self, i: Instruction) -> None:
        function = self._pop()
        self._pop()
        self._push(function)

    # Calling

    def _name_keywords(self, i: Instruction) -> None:
        self._keywords = self.code.co_consts[i.arg]

    def _call(self, i: Instruction) -> None:
        names, self._keywords = self._keywords, ()
        if i.name == "CALL_KW":
            top = self._pop()
            names = top.value if isinstance(top, Constant) and isinstance(top.value, tuple) else ()
        args = self._take(i.arg)
        function = self._callee(args)
        split = len(args) - len(names)
        self._called(function, args[:split], names, args[split:], i)

    def _callee(self, args: list[Expr]) -> Expr:
        """Takes what is called from under its arguments; a decorator stands there with a first argument."""
        lower, upper = self._take(2)
        if lower is _NULL:
            return upper
        if upper is not _NULL:
            args.insert(0, upper)
        return lower

    def _called(
        self, function: Expr, args: list[Expr], names: tuple[str, ...], values: list[Expr], i: Instruction
    ) -> None:
        line = None
        if isinstance(function, Attribute):
            if function.name in ("__enter__", "__exit__"):  # of a `with`, from 3.14 on
                self._push(function.value)
                return
            line = function.line
        call = Call(function, tuple(args), dict(zip(names, values, strict=False)), i.offset, line or i.line)
        self.calls.append(call)
        self._push(call)

    def _call_spread(self, i: Instruction) -> None:
        if i.arg & 1 or sys.version_info >= (3, 14):
            self._pop()
        given = self._pop()
        args = list(given.items) if isinstance(given, Group) else [given]
        self._called(self._callee([]), args, (), [], i)

    # Control

    def _iterate(self, i: Instruction) -> None:
        self.iterators[i.offset] = self._top()
        self._push(Element(self._top(), i.offset))

    def _enter(self, i: Instruction) -> None:
        manager = self._pop()
        self.withs.append(With(manager, i.offset, i.line))
        self._push(_UNKNOWN, manager if isinstance(manager, Call) else _UNKNOWN)

    def _return(self, i: Instruction) -> None:
        value = self._pop()
        if not isinstance(value, Constant):
            self.returns.append(value)

    def _yield(self, i: Instruction) -> None:
        self._pop()
        self._push(_UNKNOWN)

    def _other(self, i: Instruction) -> None:
        """Any other instruction: only what it does to the height of the stack is known."""
        effect = dis.stack_effect(opmap[i.name], i.arg if opmap[i.name] >= dis.HAVE_ARGUMENT else None, jump=False)
        if effect < 0:
            self._take(-effect)
        else:
            self._push(*[_UNKNOWN] * effect)


type _Handler = Callable[[Reading, Instruction], None]

_HANDLERS: dict[str, _Handler] = {
    "LOAD_FAST_LOAD_FAST": Reading._load_two_locals,
    "LOAD_FAST_BORROW_LOAD_FAST_BORROW": Reading._load_two_locals,
    "LOAD_CLOSURE": Reading._load_local,
    "LOAD_DEREF": Reading._load_local,
    "LOAD_GLOBAL": Reading._load_global,
    "LOAD_NAME": Reading._load_name,
    "LOAD_FROM_DICT_OR_GLOBALS": Reading._load_from_dict,
    "LOAD_FROM_DICT_OR_DEREF": Reading._load_from_dict,
    "LOAD_ATTR": Reading._load_attribute,
    "LOAD_SUPER_ATTR": Reading._load_super_attribute,
    "LOAD_CONST": Reading._load_constant,
    "LOAD_SMALL_INT": Reading._load_small_int,
    "LOAD_SPECIAL": Reading._load_special,
    "LOAD_BUILD_CLASS": Reading._load_build_class,
    "PUSH_NULL": Reading._push_null,
    "IMPORT_NAME": Reading._import,
    "IMPORT_FROM": Reading._import_from,
    "POP_TOP": Reading._pop_top,
    "COPY": Reading._copy,
    "SWAP": Reading._swap,
    "END_FOR": Reading._end_for,
    "END_SEND": Reading._end_send,
    "STORE_FAST": Reading._store_local,
    "STORE_FAST_MAYBE_NULL": Reading._store_local,
    "STORE_DEREF": Reading._store_local,
    "STORE_NAME": Reading._store_name,
    "STORE_GLOBAL": Reading._store_name,
    "STORE_FAST_STORE_FAST": Reading._store_two_locals,
    "STORE_FAST_LOAD_FAST": Reading._store_load_local,
    "STORE_ATTR": Reading._store_attribute,
    "STORE_SUBSCR": Reading._store_item,
    "UNPACK_SEQUENCE": Reading._unpack,
    "UNPACK_EX": Reading._unpack,
    "BINARY_OP": Reading._operation,
    "BINARY_SUBSCR": Reading._subscript,
    "BINARY_SLICE": Reading._slice,
    "COMPARE_OP": Reading._compare,
    "CONTAINS_OP": Reading._compare,
    "IS_OP": Reading._compare,
    "UNARY_NEGATIVE": Reading._unary,
    "UNARY_NOT": Reading._unary,
    "UNARY_INVERT": Reading._unary,
    "BUILD_TUPLE": Reading._display,
    "BUILD_LIST": Reading._display,
    "BUILD_SET": Reading._display,
    "BUILD_SLICE": Reading._display,
    "BUILD_STRING": Reading._string,
    "BUILD_MAP": Reading._map,
    "BUILD_CONST_KEY_MAP": Reading._constant_key_map,
    "LIST_EXTEND": Reading._extend,
    "SET_UPDATE": Reading._extend,
    "MAKE_FUNCTION": Reading._make_function,
    "SET_FUNCTION_ATTRIBUTE": Reading._set_function_attribute,
    "KW_NAMES": Reading._name_keywords,
    "CALL": Reading._call,
    "CALL_KW": Reading._call,
    "CALL_FUNCTION_EX": Reading._call_spread,
    "FOR_ITER": Reading._iterate,
    "GET_ANEXT": Reading._iterate,
    "BEFORE_WITH": Reading._enter,
    "BEFORE_ASYNC_WITH": Reading._enter,
    "RETURN_VALUE": Reading._return,
    "YIELD_VALUE": Reading._yield,
    "SEND": Reading._yield,
    "LOAD_FAST_AND_CLEAR": Reading._load_local,
    **dict.fromkeys(_KEEP_TOP, Reading._nothing),
    **dict.fromkeys(_ELEMENTS, Reading._append),
}


def _handler(name: str) -> _Handler:
    if name.startswith("LOAD_FAST"):
        return Reading._load_local
    return Reading._other


def stored_name(store: Store) -> str:
    """The last name of what is assigned to."""
    names = path(store.target)
    return names[-1] if names else ""
