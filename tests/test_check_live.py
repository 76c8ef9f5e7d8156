"""While a program trains, what is wrong is told on stderr, once, in one line; nothing of one that is right."""

from pathlib import Path

import pytest
from program_runs import tcmon_run

from tcmon.trace.details import Finding
from tcmon.trace.reader import open_run

PROGRAM = """
import sys
import torch
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
opt = torch.optim.SGD(net.parameters(), lr=0.01)
for n in range(1, 91):
    x = torch.randn(6, 4)
    if {clears}:
        opt.zero_grad()
    loss = torch.nn.functional.cross_entropy(net(x), (x.sum(1) > 0).long())
    loss.backward()
    opt.step()
    print("step", n, file=sys.stderr)
"""


def lines_of(folder: Path, clears: bool, *options: str) -> list[str]:
    (folder / "train.py").write_text(PROGRAM.format(clears=clears))
    done = tcmon_run("run", "--out", "run", "--quiet", *options, "train.py", cwd=folder)
    assert done.returncode == 0
    return done.stderr.splitlines()


def findings(folder: Path) -> list[Finding]:
    [process] = open_run(folder / "run").processes
    return [record for record in process.read(details=True) if isinstance(record, Finding)]


def test_a_finding_is_told_while_the_program_trains_and_stands_in_the_trace(tmp_path: Path) -> None:
    lines = lines_of(tmp_path, False)
    [told] = [line for line in lines if "gradients-never-cleared" in line]
    assert told.startswith("tcmon: warning: error gradients-never-cleared, step 2: ")
    assert lines.index(told) < lines.index("step 23"), "with the third recorded step"
    [finding] = findings(tmp_path)
    assert (finding.rule, finding.n, finding.line) == ("gradients-never-cleared", 2, 7)
    assert finding.file is not None
    assert finding.file.endswith("train.py")


@pytest.mark.parametrize("options", [["--no-check"], ["--ignore", "gradients-never-cleared"]])
def test_checks_can_be_switched_off_all_or_some(tmp_path: Path, options: list[str]) -> None:
    assert not [line for line in lines_of(tmp_path, False, *options) if line.startswith("tcmon")]
    assert findings(tmp_path) == []


def test_nothing_is_told_of_a_program_that_is_right(tmp_path: Path) -> None:
    assert not [line for line in lines_of(tmp_path, True) if line.startswith("tcmon")]


def test_a_rule_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('ran')\n")
    done = tcmon_run("run", "--ignore", "everything", "train.py", cwd=tmp_path)
    assert done.returncode == 2
    assert "there is no rule 'everything'" in done.stderr
    assert "ran" not in done.stdout
