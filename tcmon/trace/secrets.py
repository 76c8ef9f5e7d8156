"""Command lines without the secrets in them."""

from __future__ import annotations

import re
from collections.abc import Sequence

MASK = "***"

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_SECRET = frozenset(
    {"password", "passwd", "passphrase", "pwd", "secret", "secrets", "credential", "credentials", "apikey"}
)
_SECRET_LAST = frozenset({"token", "key", "auth", "pass", "pat", "bearer", "authorization"})
_NO_SECRET_LAST = frozenset({"file", "path", "dir", "folder", "length", "len", "size", "min", "max"})
_ASSIGNMENT = re.compile(r"([^\s=:?&]+(?:=|:\s*))(.+)", re.DOTALL)
_IN_URL = re.compile(r"(\b[a-z][a-z0-9+.-]*://)[^/?#\s@]+@", re.IGNORECASE)
_QUERY = re.compile(r"([?&;])([^?&;=\s#]+)=([^?&;\s#]+)")


def masked(command: Sequence[str]) -> list[str]:
    """`command` with `***` in place of values that are named like secrets, and of credentials in URLs."""
    shown: list[str] = []
    value_follows = False
    for word in command:
        if value_follows and not word.startswith("-"):
            shown.append(MASK)
            value_follows = False
            continue
        value_follows = word.startswith("-") and "=" not in word and _names_secret(word)
        shown.append(_masked(word))
    return shown


def _masked(word: str) -> str:
    parts = _ASSIGNMENT.fullmatch(word)
    if parts is not None and _names_secret(parts[1]):
        return parts[1] + MASK
    word = _IN_URL.sub(rf"\1{MASK}@", word)
    return _QUERY.sub(lambda part: f"{part[1]}{part[2]}={MASK if _names_secret(part[2]) else part[3]}", word)


def _names_secret(name: str) -> bool:
    words = [word.lower() for word in _WORD.findall(name)]
    if not words or words[-1] in _NO_SECRET_LAST:
        return False
    return words[-1] in _SECRET_LAST or not _SECRET.isdisjoint(words)
