"""`tcmon diff` with state: the first recorded step and parameter of which contents differ, and what was before it."""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from program_runs import tcmon_run
from test_diff import noisy_run
from trace_builder import encode, function, header, loop, of_step, parameter, state, step, steps, write_run

from tcmon.report.diff import Diff, diff
from tcmon.report.diff_state import StateDiff
from tcmon.trace.reader import open_run

NAMES = [header(), loop(1), function(1, "f"), {"kind": "optimizer", "id": 1, "name": "torch.optim.sgd.SGD"}]
STEPS = (1, 2, 12, 22, 32, 42)


def records(
    *,
    numbers: Sequence[int] = STEPS,
    other_after: tuple[int, int] | None = None,
    other_before: int | None = None,
    other_data: int | None = None,
    other_loss: int | None = None,
    mark: str = "",
) -> list[dict[str, Any]]:
    """Steps of a model with two parameters; from some step on it is not as in other runs.

    `other_after` names a step and the parameter that differs after the optimizer's step in it and from then on.
    """
    rows = [*NAMES, parameter(1, "fc.weight"), parameter(2, "fc.bias")]
    for n in numbers:
        before, after = [f"{mark}{n}w", f"{mark}{n}b"], [f"{mark}{n + 1}w", f"{mark}{n + 1}b"]
        if other_after and n >= other_after[0]:
            after[other_after[1]] += "!"
            if n > other_after[0]:
                before[other_after[1]] += "!"
        if other_before and n >= other_before:
            before, after = [f"{each}?" for each in before], [f"{each}?" for each in after]
        data = f"batch{n}" + ("!" if other_data and n >= other_data else "")
        loss = 1 / n + (0.5 if other_loss and n >= other_loss else 0)
        rows += [
            of_step("inputs", n, module=["Net"], hash=[data], reused=[False], logits=0, probabilities=0),
            of_step("loss", n, value=[loss]),
            state(n, [1, 2], before=before, after=after),
            step(n, 10 * n, 5),
        ]
    return [*rows, steps([5] * 50)]


def compared(tmp_path: Path, a: list[dict[str, Any]], b: list[dict[str, Any]]) -> Diff:
    return diff(open_run(write_run(tmp_path / "a", a)), open_run(write_run(tmp_path / "b", b)))


def state_of(tmp_path: Path, a: list[dict[str, Any]], b: list[dict[str, Any]]) -> StateDiff:
    (found,) = compared(tmp_path, a, b).states
    return found


def test_the_first_step_and_parameter_that_differ_are_found(tmp_path: Path) -> None:
    found = state_of(tmp_path, records(), records(other_after=(12, 1), other_loss=22))
    assert found.first is not None
    assert (found.first.n, found.first.before, found.first.parameters, found.first.of) == (12, False, ["fc.bias"], 2)
    assert (found.compared, found.last_same, found.inputs) == (3, 2, None)
    assert [(pair.n, pair.differs) for pair in found.losses] == [
        (1, False),
        (2, False),
        (12, False),
        (22, True),
        (32, True),
        (42, True),
    ]


def test_what_differed_before_the_optimizer_stepped_is_said_to(tmp_path: Path) -> None:
    found = state_of(tmp_path, records(), records(other_before=22))
    assert found.first is not None
    assert (found.first.n, found.first.before, found.first.parameters) == (22, True, ["fc.weight", "fc.bias"])


def test_other_data_are_seen_before_what_they_do(tmp_path: Path) -> None:
    found = state_of(tmp_path, records(), records(other_data=12, other_loss=12, other_after=(12, 0)))
    assert (found.inputs, found.loss and found.loss.n, found.first and found.first.n) == (12, 12, 12)


def test_a_run_is_as_itself_and_only_steps_of_both_are_compared(tmp_path: Path) -> None:
    result = compared(tmp_path, records(), records(numbers=(1, 2, 3, 22, 50)))
    (found,) = result.states
    assert (found.compared, found.last_same, found.differs) == (3, 22, False)
    assert result.nothing_claimed


def test_nan_losses_are_the_same(tmp_path: Path) -> None:
    rows = [*records(numbers=(1,))[:-1], of_step("loss", 2, value=["nan"]), step(2, 20, 5)]
    assert not state_of(tmp_path, rows, rows).differs


def test_a_sample_is_not_compared_with_the_whole(tmp_path: Path) -> None:
    assert not state_of(tmp_path, records(), records(mark="~")).differs
    found = state_of(tmp_path, records(mark="~"), records(mark="~", other_after=(2, 0)))
    assert found.first is not None
    assert found.first.sampled


def test_each_rank_is_compared_with_its_own(tmp_path: Path) -> None:
    for name, changes in (("a", {}), ("b", {"other_after": (12, 0)})):
        directory = write_run(tmp_path / name, None)
        for rank in (0, 1):
            rows = records(**(changes if rank else {}))  # type: ignore[arg-type]
            (directory / f"trace-rank{rank}.0-{50 + rank}.jsonl").write_bytes(encode(rows))
    found = diff(open_run(tmp_path / "a"), open_run(tmp_path / "b")).states
    assert [(each.rank, each.first and each.first.n) for each in found] == [(0, None), (1, 12)]


def test_runs_without_state_have_nothing_to_compare(tmp_path: Path) -> None:
    rows = [*NAMES, step(1, 0, 5), steps([5] * 9)]
    found = state_of(tmp_path, rows, rows)
    assert (found.compared, found.differs) == (0, False)


def test_the_command_tells_it_to_people_and_programs(tmp_path: Path) -> None:
    write_run(tmp_path / "a", records())
    write_run(tmp_path / "b", records(other_after=(12, 1), other_loss=22))
    ended = tcmon_run("diff", "a", "b", cwd=tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "differ first at step 12, after the optimizer's step, not before it: fc.bias" in ended.stdout
    assert "1 of 2 parameters differ there." in ended.stdout
    assert "the last of them step 2" in ended.stdout
    assert "No difference" not in ended.stdout
    told = json.loads(tcmon_run("diff", "a", "b", "--json", cwd=tmp_path).stdout)
    (found,) = told["state"]
    assert told["differs"] is True
    assert found["first"] == {
        "step": 12,
        "before_the_optimizer": False,
        "parameters": ["fc.bias"],
        "of": 2,
        "sampled": False,
    }
    assert found["losses"][0] == {"step": 1, "a": 1.0, "b": 1.0}


@pytest.mark.parametrize("slower, claimed", [(1.0, []), (2.0, [37])])
def test_lines_that_take_longer_are_found_beyond_noise(tmp_path: Path, slower: float, claimed: list[int]) -> None:
    for name, seed, factor in (("a", 1, 1.0), ("b", 2, slower)):
        dice = random.Random(seed)
        directory = noisy_run(tmp_path / name, seed)
        (trace,) = directory.glob("trace-*.jsonl")
        rows: list[dict[str, Any]] = []
        for each in map(json.loads, trace.read_text().splitlines()):
            if each["kind"] == "step":
                ns = [int(took * dice.lognormvariate(0, 0.1)) for took in (100_000, 200_000 * factor)]
                rows.append(
                    of_step(
                        "lines", each["n"], thread=1, function=1, body=True, line=[36, 37], hits=[1, 1], ns=ns, own=0
                    )
                )
            rows.append(each)
        trace.write_bytes(encode(rows))
    (role, _) = diff(open_run(tmp_path / "a"), open_run(tmp_path / "b")).roles
    assert {each.line for each in role.lines} == {36, 37}
    assert [each.line for each in role.lines if each.claimed] == claimed
