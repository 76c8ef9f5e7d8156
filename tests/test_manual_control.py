"""Steps and stages that the program names itself."""

import textwrap
from pathlib import Path

import pytest
from monitored import STAND_INS, Monitored, monitored

import tcmon

PRELUDE = STAND_INS + "import tcmon\ntrain = evals = 0\nval_loader = range(3)\n"


def run(program: str, folder: Path, **options: int) -> Monitored:
    return monitored(PRELUDE + textwrap.dedent(program), folder, **options)


PROGRAMS = {
    "a loop that no analysis would guess": """
        for item in range(6):
            tcmon.start_step()
            train += 1
    """,
    "a training loop that would be found": """
        for epoch in range(2):
            for item in range(4):
                tcmon.start_step()
                train += 1
                loss.backward()
                optimizer.step()
    """,
    "two steps in one iteration of a training loop": """
        for item in range(4):
            tcmon.start_step(); train += 1
            loss.backward(); optimizer.step()
            tcmon.start_step(); train += 1
            loss.backward(); optimizer.step()
    """,
    "from the loop's third iteration on": """
        for item in range(7):
            if item > 2:
                tcmon.start_step()
                train += 1
            loss.backward()
            optimizer.step()
    """,
    "in a callback": """
        def on_batch_start():
            global train
            tcmon.start_step()
            train += 1
        def fit(callback):
            for item in range(5): callback()
        fit(on_batch_start)
        fit(on_batch_start)
    """,
    "as a block": """
        for item in range(6):
            if item % 2: continue
            with tcmon.step():
                train += 1
                loss.backward()
    """,
    "a block that raises": """
        for item in range(4):
            try:
                with tcmon.step():
                    train += 1
                    if item == 1: raise ValueError
            except ValueError: pass
    """,
    "training and evaluation": """
        for epoch in range(3):
            for item in range(4):
                tcmon.start_step(); train += 1
            for item in range(2):
                tcmon.start_eval_step(); evals += 1
    """,
    "evaluation within a training step": """
        def check():
            global evals
            for item in range(3):
                tcmon.start_eval_step()
                evals += 1
                model(item)
        for item in range(6):
            tcmon.start_step()
            train += 1
            if item % 2: check()
            loss.backward()
    """,
    "within an evaluation within itself": """
        def evaluate(depth):
            global evals
            for batch in val_loader:
                model(batch)
                if depth: evaluate(depth - 1)
                else:
                    tcmon.start_eval_step()
                    evals += 1
        evaluate(1)
    """,
    "evaluation steps where an evaluation loop would be found": """
        def evaluate():
            global evals
            for batch in val_loader:
                tcmon.start_eval_step()
                evals += 1
                model(batch)
        evaluate()
        evaluate()
    """,
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("interval", [1, 2])
def test_steps_are_those_that_the_program_begins(name: str, interval: int, tmp_path: Path) -> None:
    done = run(PROGRAMS[name], tmp_path, interval=interval, warmup=0)

    for role, counted in (("train", done.names["train"]), ("eval", done.names["evals"])):
        assert sorted(done.numbers(role)) == list(range(1, counted + 1))
        assert sorted(done.recorded(role)) == [n for n in range(1, counted + 1) if n % interval == 0]
        assert {loop.found for loop in done.loops(role)} <= {"manual"}


def test_a_recorded_training_step_holds_no_call_of_the_evaluation_within_it(tmp_path: Path) -> None:
    done = run(PROGRAMS["evaluation within a training step"], tmp_path, interval=1, warmup=0)

    for step in done.recorded("train").values():
        names = [call.function.qualname for tree in step.calls for call in tree.walk()]
        assert names.count("Loss.backward") == 1
        assert "model" not in names


def test_a_block_ends_its_step(tmp_path: Path) -> None:
    done = run(
        """
        import time
        for item in range(3):
            with tcmon.step():
                pass
            time.sleep(0.02)
        """,
        tmp_path,
    )

    assert all(end < 15_000_000 for _, _, end in done.times("train").values())


def test_the_stage_of_a_step_is_that_of_its_loop_until_the_program_says_otherwise(tmp_path: Path) -> None:
    done = run(
        """
        def test(): # evaluates
            for batch in val_loader: model(batch)
        def evaluate():
            for batch in val_loader: model(batch)
        for item in range(4):
            loss.backward(); optimizer.step()
            if item == 1: tcmon.annotate_stage("checkpointing")
            if item == 2: tcmon.annotate_stage("training")
        test()
        evaluate()
        """,
        tmp_path,
    )

    assert done.stages("train") == {1: "training", 2: "checkpointing", 3: "training", 4: "training"}
    assert list(done.stages("eval").values()) == ["testing"] * 3 + ["evaluation"] * 3


def test_a_different_stage_turns_recording_on_until_the_next_step_decides(tmp_path: Path) -> None:
    done = run(
        """
        for item in range(6):
            loss.backward(); optimizer.step()
            if item == 2: tcmon.annotate_stage("training")
            if item == 3: tcmon.annotate_stage("checkpointing")
            optimizer.zero_grad()
        """,
        tmp_path,
        interval=100,
        warmup=0,
    )

    [step] = done.recorded("train").values()
    assert (step.step.n, step.step.reason, step.step.stage) == (4, "stage", "checkpointing")
    names = [call.function.qualname for tree in step.calls for call in tree.walk()]
    assert "Optimizer.zero_grad" in names
    assert "Optimizer.step" not in names


def test_a_stage_outside_of_all_steps_is_recorded_until_the_next_step_decides(tmp_path: Path) -> None:
    done = run(
        """
        def prepare(): pass
        prepare()
        tcmon.annotate_stage("init")
        prepare()
        tcmon.annotate_stage("preprocessing")
        prepare()
        tcmon.annotate_stage("preprocessing")
        prepare()
        for item in range(3):
            loss.backward(); optimizer.step()
        prepare()
        tcmon.annotate_stage("postprocessing")
        prepare(); prepare(); prepare()
        """,
        tmp_path,
        interval=100,
        warmup=0,
    )

    found = [
        (step.step.stage, [call.function.qualname for tree in step.calls for call in tree.walk()].count("prepare"))
        for step in done.recorded("other").values()
    ]
    assert found == [("preprocessing", 2), ("postprocessing", 3)]
    assert done.numbers("train") == [1, 2, 3]
    assert done.recorded("train") == {}


@pytest.mark.parametrize("name", ["", "train", "Training", None, 3])
def test_an_unknown_stage_is_refused_with_the_known_ones(name: object) -> None:
    with pytest.raises(ValueError, match=r"init, training, evaluation, .*, not "):
        tcmon.annotate_stage(name)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", tcmon.STAGES)
def test_without_a_session_all_of_it_does_nothing(name: str) -> None:
    assert tcmon.start_step() is None
    assert tcmon.start_eval_step() is None
    assert tcmon.annotate_stage(name) is None
    with tcmon.step() as nothing:
        assert nothing is None


def test_without_a_session_there_is_no_work_to_do() -> None:
    # What an empty call costs depends on the machine; that it is an empty call does not.
    assert tcmon.start_step.__code__.co_names == ()
    assert tcmon.start_eval_step.__code__.co_names == ()
    assert tcmon.step() is tcmon.step()
