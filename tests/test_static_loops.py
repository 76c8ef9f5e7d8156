"""Training and evaluation loops are found in the programs that people write, and nothing else is taken for one.

The programs are in `loops/`: each begins with `# %% what it shows`; a loop that plays a role has it in a comment at its
line, `# tcmon: train`.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tcmon.analysis.modules import module_loops

FILES = sorted((Path(__file__).parent / "loops").glob("*.py"))


def programs() -> Iterator[tuple[str, str]]:
    for file in FILES:
        for section in re.split(r"^# %% ", file.read_text(), flags=re.MULTILINE)[1:]:
            title, _, _ = section.partition("\n")
            yield f"{file.stem}: {title}", f"# {section}"


PROGRAMS = dict(programs())


def marked(source: str) -> dict[int, str]:
    roles = {}
    for number, line in enumerate(source.splitlines(), 1):
        if found := re.search(r"# tcmon: (\w+)$", line):
            assert re.match(r"\s*(async )?(for|while)\b", line), line
            roles[number] = found[1]
    return roles


@pytest.mark.parametrize("title", PROGRAMS)
def test_the_marked_loops_are_found_and_nothing_else_is(title: str) -> None:
    source = PROGRAMS[title]
    found = module_loops(compile(source, "program.py", "exec"), ast.parse(source))
    shown = {loop.line: loop for loop in found}
    assert {loop.line: str(loop.role) for loop in found if loop.role} == marked(source), "\n".join(
        f"{line}: {loop.role} {loop.evidence}" for line, loop in shown.items()
    )
    assert all(loop.evidence for loop in found)


@pytest.mark.parametrize("title", PROGRAMS)
def test_every_for_and_while_is_listed_once_at_the_line_of_its_keyword(title: str) -> None:
    source = PROGRAMS[title]
    tree = ast.parse(source)
    lines = [loop.line for loop in module_loops(compile(source, "program.py", "exec"), tree)]
    statements = {n.lineno for n in ast.walk(tree) if isinstance(n, ast.For | ast.While | ast.AsyncFor)}
    assert len(lines) == len(set(lines))
    assert set(lines) <= statements
