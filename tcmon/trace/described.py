"""Arguments and results of calls, as recorders describe them (docs/trace-format.md), in a few words."""

from collections.abc import Mapping
from typing import Final

_DEEPEST: Final = 4
_DTYPES: Final = {  # as type names go in short
    "float32": "f32",
    "float64": "f64",
    "float16": "f16",
    "bfloat16": "bf16",
    "int64": "i64",
    "int32": "i32",
}


def signature(arguments: Mapping[str, object], returned: object) -> str:
    """A call as "(model, f32[16, 4], p=0.1) -> f32[16, 4]". None and arguments of that value are left out."""
    parts = []
    for name, value in arguments.items():
        if value is None or (name.startswith("*") and _is_empty(value)):
            continue
        plain = isinstance(value, str | int | float)
        parts.append(f"{name}={short(value)}" if plain else short(value))
    result = "" if returned is None else f" -> {short(returned)}"
    return f"({', '.join(parts)}){result}"


def short(value: object, depth: int = 0) -> str:
    """A value that a recorder has described."""
    if isinstance(value, str):
        return repr(value)
    if not isinstance(value, dict):
        return str(value)
    if "tensor" in value:
        return _tensor(value)
    for kind in ("module", "optimizer"):
        if isinstance(value.get(kind), str):
            name = value.get("name")
            return name if isinstance(name, str) and name else _last(str(value[kind]))
    for kind in ("list", "dict"):
        if kind in value:
            return _container(value, kind, depth)
    if "value" in value:
        inner = value["value"]
        return inner if isinstance(inner, str) else short(inner, depth + 1)
    return _last(str(value.get("type", "?")))


def _tensor(value: Mapping[str, object]) -> str:
    dtype = str(value.get("dtype"))
    shape = value.get("tensor")
    dimensions = ", ".join("?" if each is None else str(each) for each in shape) if isinstance(shape, list) else "?"
    device = value.get("device")
    where = "" if device in ("cpu", None) else f"@{device}"
    return f"{_DTYPES.get(dtype, dtype)}[{dimensions}]{where}"


def _container(value: Mapping[str, object], kind: str, depth: int) -> str:
    count, items = value[kind], value.get("items")
    if not isinstance(items, list) or depth >= _DEEPEST:
        return f"{kind} of {count}"
    if kind == "dict":
        pairs = [each for each in items if isinstance(each, list) and len(each) == 2]
        shown = [f"{short(key, depth + 1)}: {short(item, depth + 1)}" for key, item in pairs]
    else:
        shown = [short(each, depth + 1) for each in items]
    if isinstance(count, int) and count > len(shown):
        shown.append(f"… {count} in all")
    opening, closing = "{}" if kind == "dict" else "[]"
    return f"{opening}{', '.join(shown)}{closing}"


def _is_empty(value: object) -> bool:
    return isinstance(value, dict) and 0 in (value.get("list"), value.get("dict"))


def _last(name: str) -> str:
    return name.rpartition(".")[2]
