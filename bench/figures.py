"""A measured figure, and how figures become a table and a JSON file."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import platform
import random
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

DRAWS = 1_000
PACKAGES = ("torch", "transformers", "orjson", "viztracer", "scalene", "py-spy")


@dataclasses.dataclass(frozen=True)
class Figure:
    """A median with its 95 % bootstrap interval; `target` is the most it should be, None where there is no target."""

    name: str
    median: float
    low: float
    high: float
    pairs: int
    unit: str
    command: str
    target: float | None = None


def figure(name: str, values: Sequence[float], unit: str, command: str, target: float | None = None) -> Figure:
    """The figure of one value for each pair of measurements."""
    low, high = interval(values)
    return Figure(name, statistics.median(values), low, high, len(values), unit, command, target)


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % bootstrap interval of the median; the same for the same values."""
    if len(values) == 1:
        return values[0], values[0]
    drawer = random.Random(0)
    medians = sorted(statistics.median(drawer.choices(values, k=len(values))) for _ in range(DRAWS))
    return medians[DRAWS * 25 // 1000], medians[DRAWS * 975 // 1000]


def against_neighbours(plain: Sequence[float], changed: Sequence[float]) -> list[tuple[float, float]]:
    """Each changed block with the mean of the plain ones before and after it; one more plain than changed."""
    return [(own, (plain[i] + plain[i + 1]) / 2) for i, own in enumerate(changed)]


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    model = next((line.split(":")[1].strip() for line in _cpu_lines() if line.startswith("model name")), "unknown")
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load": os.getloadavg()[0],
        "python": sys.version.split()[0],
        "versions": versions,
    }


def write(folder: Path, figures: Sequence[Figure], peers: Sequence[dict[str, Any]], growth: dict[str, Any]) -> str:
    """Write `bench.json` and `bench.md`; the text of the latter."""
    found = {
        "machine": machine(),
        "figures": [dataclasses.asdict(each) for each in figures],
        "peers": list(peers),
        "growth": growth,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "bench.json").write_text(json.dumps(found, indent=1) + "\n")
    text = as_markdown(found)
    (folder / "bench.md").write_text(text)
    return text


def as_markdown(found: dict[str, Any]) -> str:
    """The tables of what was measured."""
    here = found["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in here["versions"].items())
    lines = [
        f"Measured on {here['cpu']}, {here['cores']} cores, load {here['load']:.1f};",
        f"Python {here['python']}, {versions}.",
        "",
        *_row("figure", "median", "95 % interval", "pairs", "target", "command"),
        *_row(*["---"] * 6),
    ]
    for each in found["figures"]:
        target = "" if each["target"] is None else f"{each['target']:g}"
        lines += _row(
            each["name"],
            f"{each['median']:.4g} {each['unit']}",
            f"{each['low']:.4g} to {each['high']:.4g}",
            str(each["pairs"]),
            target,
            f"`{each['command']}`",
        )
    if found["peers"]:
        lines += ["", *_row("on", "tool", "loop", "until readable", "on disk", "knows steps", "command")]
        lines += _row(*["---"] * 7)
        for each in found["peers"]:
            if "not_run" in each:
                lines += _row(each["workload"], each["tool"], f"not run: {each['not_run']}", "", "", "", "")
            else:
                lines += _row(
                    each["workload"],
                    each["tool"],
                    f"{each['slowdown']:.2f}x",
                    f"{each['readable_s']:+.1f} s",
                    f"{each['bytes'] / 1e6:.2f} MB",
                    each["knows_steps"],
                    f"`{each['command']}`",
                )
    for name, table in found["growth"].items():
        lines += ["", f"{name}:", "", *_row(*table["columns"]), *_row(*["---"] * len(table["columns"]))]
        for row in table["rows"]:
            lines += _row(*(f"{value:,.4g}" if isinstance(value, float) else f"{value:,}" for value in row))
    return "\n".join(lines) + "\n"


def _row(*cells: str) -> list[str]:
    return ["| " + " | ".join(cells) + " |"]


def _cpu_lines() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []
