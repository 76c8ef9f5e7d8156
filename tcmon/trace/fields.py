"""Strict access to the fields of a JSON object, of which nothing is known yet.

Every function raises `Damaged` where the field is missing, of another type or out of range, and nothing else.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import orjson

TIME_LIMIT: Final = 1 << 62
"""Clock values and durations (ns) stay below it (146 years), so that a sum of two fits into 64 bits."""

COUNT_LIMIT: Final = 1 << 48
"""Counts and identities stay below it, so that they, and sums of some, are exact in every reader of JSON."""

type Object = Mapping[str, object]
"""A JSON object as it was read, nothing about it checked."""

type Setting = str | float | bool | tuple[str, ...] | None
"""The value of an option."""


class Damaged(ValueError):
    """What was read is no record of this format; the text says what is wrong with it."""


def parse(data: bytes) -> Object:
    """The JSON object in `data`. Raises `Damaged` when it isn't one."""
    try:
        value: object = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise Damaged(f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise Damaged("not a JSON object")
    return value


def number(obj: Object, name: str, low: int = 0, limit: int = COUNT_LIMIT) -> int:
    """A count or an identity."""
    value = obj.get(name)
    if type(value) is not int:
        raise Damaged(f"{name} is {_shown(value)}, not a whole number")
    if not low <= value < limit:
        raise Damaged(f"{name} is out of range: {value}")
    return value


def time(obj: Object, name: str) -> int:
    """A clock value or a duration, in nanoseconds."""
    return number(obj, name, limit=TIME_LIMIT)


def numbers(obj: Object, name: str, low: int, limit: int = TIME_LIMIT) -> list[int]:
    """A column of numbers."""
    value = obj.get(name)
    if not isinstance(value, list) or not {int}.issuperset(map(type, value)):
        raise Damaged(f"{name} is not a list of whole numbers")
    if value and not low <= min(value) <= max(value) < limit:
        raise Damaged(f"a number of {name} is out of range")
    return value


def number_or_none(obj: Object, name: str) -> int | None:
    """A count or an identity, or None where it is null or missing."""
    return None if obj.get(name) is None else number(obj, name)


def counts(obj: Object, name: str) -> list[int | None]:
    """A column of counts, None where there is none."""
    return [number_or_none({name: value}, name) for value in anything(obj, name)]


def real(obj: Object, name: str) -> float | None:
    """A real number, written as a text where JSON has none for it ("nan", "inf", "-inf"); None where it is null."""
    return _real(obj.get(name), name)


def reals(obj: Object, name: str) -> list[float | None]:
    """A column of real numbers, as `real`."""
    return [_real(value, name) for value in anything(obj, name)]


def _real(value: object, name: str) -> float | None:
    if value is None:
        return None
    if type(value) is float or (type(value) is int and abs(value) < TIME_LIMIT):
        return float(value)
    if type(value) is str and value in _NOT_FINITE:
        return float(value)
    raise Damaged(f"{name} is {_shown(value)}, not a real number")


_NOT_FINITE: Final = frozenset(("nan", "inf", "-inf"))


def flag(obj: Object, name: str) -> bool:
    """A truth value."""
    value = obj.get(name)
    if type(value) is not bool:
        raise Damaged(f"{name} is {_shown(value)}, not true or false")
    return value


def flags(obj: Object, name: str) -> list[bool]:
    """A column of truth values."""
    return [flag({name: value}, name) for value in anything(obj, name)]


def anything(obj: Object, name: str) -> list[object]:
    """A list, of what is not yet known."""
    value = obj.get(name)
    if not isinstance(value, list):
        raise Damaged(f"{name} is {_shown(value)}, not a list")
    return value


def texts_or_none(obj: Object, name: str) -> list[str | None]:
    """A column of texts, None where there is none."""
    return [text_or_none({name: value}, name) for value in anything(obj, name)]


def text(obj: Object, name: str) -> str:
    """A text."""
    value = obj.get(name)
    if type(value) is not str:
        raise Damaged(f"{name} is {_shown(value)}, not a text")
    return value


def text_or_none(obj: Object, name: str) -> str | None:
    """A text, or None where it is null or missing."""
    return None if obj.get(name) is None else text(obj, name)


def texts(obj: Object, name: str) -> tuple[str, ...]:
    """A list of texts."""
    value = obj.get(name)
    if not isinstance(value, list) or not {str}.issuperset(map(type, value)):
        raise Damaged(f"{name} is not a list of texts")
    return tuple(value)


def choice(obj: Object, name: str, choices: Sequence[str]) -> str:
    """A text that is one of `choices`."""
    value = text(obj, name)
    if value not in choices:
        raise Damaged(f"{name} is {_shown(value)}, not one of {', '.join(choices)}")
    return value


def nested(obj: Object, name: str) -> Object:
    """An object within the object."""
    value = obj.get(name)
    if not isinstance(value, dict):
        raise Damaged(f"{name} is {_shown(value)}, not an object")
    return value


def nested_list(obj: Object, name: str) -> Sequence[Object]:
    """A list of objects."""
    value = obj.get(name)
    if not isinstance(value, list) or not {dict}.issuperset(map(type, value)):
        raise Damaged(f"{name} is not a list of objects")
    return value


def settings(obj: Object, name: str) -> Mapping[str, Setting]:
    """An object that holds options, none of them nested deeper than a list of texts."""
    return {key: _setting(key, value) for key, value in nested(obj, name).items()}


def _setting(name: str, value: object) -> Setting:
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, list) and {str}.issuperset(map(type, value)):
        return tuple(value)
    raise Damaged(f"option {name[:40]!r} is {_shown(value)}, not a number, a text or a list of texts")


def _shown(value: object) -> str:
    # No repr of a list or an object: it may be huge, or nested deeper than Python's stack.
    return repr(value)[:40] if isinstance(value, str | int | float | None) else f"a {type(value).__name__}"
