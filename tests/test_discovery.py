"""The running program decides which loop is the training loop, whatever it is called and wherever it stands.

The programs count their training steps in `train`. They use torch in ways that names alone don't tell.
"""

import textwrap
from pathlib import Path

import pytest
from monitored import Monitored, monitored

PRELUDE = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
sgd = torch.optim.SGD(model.parameters(), lr=0.1)
data = [torch.randn(3, 4) for _ in range(6)]
train = 0

def grads(batch):
    sgd.zero_grad()
    model(batch).sum().backward()
"""

PROGRAMS = {
    "an optimizer derived from another one, stepped through both": """
        class Derived(torch.optim.SGD):
            def step(self, closure=None):
                return super().step(closure)
        optimizers = [Derived(model.parameters(), lr=0.1) for _ in range(2)]
        for batch in data:
            train += 1
            for optimizer in optimizers:
                grads(batch)
                optimizer.step()
    """,
    "a step through a variable": """
        advance = sgd.step
        for batch in data:
            train += 1
            grads(batch)
            advance()
    """,
    "a thing with another name": """
        class Thing:
            def go(self): getattr(sgd, "st" + "ep")()
        thing = Thing()
        for epoch in range(3):
            for batch in data:
                train += 1
                grads(batch)
                thing.go()
    """,
    "one batch a call, from a loop elsewhere": """
        def fit(batch):
            grads(batch)
            getattr(sgd, "step")()
        def drive(source, sink):
            global train
            for item in source:
                train += 1
                sink(item)
        drive(data, fit)
    """,
    "micro-batches in an inner loop": """
        advance = sgd.step
        for epoch in range(2):
            for start in range(3):
                train += 1
                for batch in data[start * 2 : start * 2 + 2]:
                    model(batch).sum().backward()
                advance()
                sgd.zero_grad()
    """,
    "micro-batches in one loop, a step every second": """
        advance = sgd.step
        for i, batch in enumerate(data):
            train += 1
            grads(batch)
            if i % 2: advance()
    """,
    "an update loop whose inner loop does all, as library trainers": """
        batches = iter(data * 2)
        for update in range(6):
            train += 1
            for i, batch in enumerate([next(batches), next(batches)]):
                sgd.zero_grad()
                model(batch).sum().backward()
                if i == 1: sgd.step()
    """,
    "several optimizers in turn": """
        other = torch.optim.SGD(model.parameters(), lr=0.1)
        for batch in data:
            train += 1
            grads(batch)
            for each in (sgd, other): getattr(each, "step")()
    """,
    "two optimizers, one with inner turns": """
        critic = torch.nn.Linear(4, 1)
        turn, advance = torch.optim.SGD(critic.parameters(), lr=0.1).step, sgd.step
        for batch in data:
            train += 1
            for _ in range(3):
                critic(batch).sum().backward()
                turn()
            grads(batch)
            advance()
    """,
    "minibatches of several passes over a rollout": """
        advance = sgd.step
        for rollout in range(2):
            for t in range(5):
                with torch.no_grad(): model(data[t])
            for passes in range(3):
                for batch in data:
                    train += 1
                    grads(batch)
                    advance()
    """,
    "full batch, one step an epoch": """
        advance = sgd.step
        epoch = 0
        while epoch < 5:
            train += 1
            grads(data[0])
            advance()
            epoch += 1
    """,
    "while true with next": """
        advance, batches = sgd.step, iter(data)
        while True:
            batch = next(batches, None)
            if batch is None: break
            train += 1
            grads(batch)
            advance()
        train += 1  # the iteration that found the end
    """,
    "a closure": """
        lbfgs = torch.optim.LBFGS(model.parameters(), max_iter=3)
        advance = lbfgs.step
        for batch in data:
            train += 1
            def closure():
                lbfgs.zero_grad()
                loss = model(batch).square().sum()
                loss.backward()
                return loss
            advance(closure)
    """,
    "by hand, after backward": """
        for batch in data:
            train += 1
            model(batch).sum().backward()
            with torch.no_grad():
                for p in model.parameters():
                    p.sub_(0.1 * p.grad)
                    p.grad = None
    """,
    "by hand, backward out of sight": """
        def compute(batch): getattr(model(batch).sum(), "backward")()
        for batch in data:
            train += 1
            compute(batch)
            for p in model.parameters(): p.data.sub_(0.1 * p.grad)
    """,
    "a scaler": """
        scaler = torch.amp.GradScaler("cpu")
        advance = scaler.step
        for batch in data:
            train += 1
            sgd.zero_grad()
            scaler.scale(model(batch).sum()).backward()
            advance(sgd)
            scaler.update()
    """,
    "a scheduler's wrapper around the step": """
        scheduler = torch.optim.lr_scheduler.LambdaLR(sgd, lambda n: 1.0)
        advance = sgd.step
        for batch in data:
            train += 1
            grads(batch)
            advance()
            scheduler.step()
    """,
    "a generator that is drained": """
        advance = sgd.step
        def losses():
            global train
            for batch in data:
                train += 1
                grads(batch)
                advance()
                yield 1
        sum(losses())
    """,
    "two phases": """
        advance = sgd.step
        for batch in data:
            train += 1
            grads(batch)
            advance()
        second = torch.optim.Adam(model.parameters()).step
        for batch in data[:4]:
            train += 1
            grads(batch)
            second()
    """,
    "a callable that does both": """
        class Scaler:
            def __call__(self, loss, optimizer):
                loss.backward()
                optimizer.step()
        scale = Scaler()
        for batch in data:
            train += 1
            sgd.zero_grad()
            scale(model(batch).sum(), sgd)
    """,
    "an optimizer for each parameter, stepped in hooks": """
        optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}
        def hook(p):
            optimizers[p].step()
            optimizers[p].zero_grad()
        for p in model.parameters(): p.register_post_accumulate_grad_hook(hook)
        for batch in data:
            train += 1
            model(batch).sum().backward()
    """,
    "a retry loop around the step": """
        def step(batch):
            for attempt in range(3):
                try:
                    grads(batch)
                    sgd.step()
                    return
                except ValueError: pass
        for batch in data:
            train += 1
            step(batch)
    """,
    "fused and foreach": """
        one = torch.optim.AdamW(model.parameters(), foreach=True).step
        two = torch.optim.AdamW(model.parameters(), fused=True).step
        for batch in data:
            train += 1
            grads(batch)
            one(); two()
    """,
    "an optimizer in a class of the program's": """
        class Noam:
            def __init__(self, optimizer): self.inner = optimizer
            def move(self): self.inner.step()
        noam = Noam(sgd)
        for batch in data:
            train += 1
            grads(batch)
            noam.move()
    """,
    "an optimizer that is none of torch's": """
        class Signs:
            def move(self):
                with torch.no_grad():
                    for p in model.parameters():
                        p -= 0.1 * p.grad.sign()
                        p.grad = None
        signs = Signs()
        def compute(batch): getattr(model(batch).sum(), "backward")()
        for epoch in range(2):
            for batch in data:
                train += 1
                compute(batch)
                signs.move()
    """,
    "a compiled step": """
        advance = torch.compile(sgd.step, backend="eager")
        for batch in data:
            train += 1
            model(batch).sum().backward()
            advance()
            sgd.zero_grad()
    """,
    "new optimizers in an inner loop, one around (meta-learning)": """
        advance = sgd.step
        for task in range(4):
            train += 1
            inner = torch.nn.Linear(4, 2)
            adapt = torch.optim.SGD(inner.parameters(), lr=0.1).step
            for _ in range(3):
                inner(data[0]).sum().backward()
                adapt()
            grads(data[0])
            advance()
    """,
}


def run(program: str, folder: Path, **options: int) -> Monitored:
    return monitored(PRELUDE + textwrap.dedent(program), folder, **options)


@pytest.mark.parametrize("name", PROGRAMS)
def test_steps_are_those_of_the_loop_that_trains(name: str, tmp_path: Path) -> None:
    done = run(PROGRAMS[name], tmp_path, interval=2, warmup=0)

    assert done.names["train"] >= 4
    assert sorted(done.numbers("train")) == list(range(1, done.names["train"] + 1)), done.loops("other")
    assert done.numbers("eval") == []
    recorded = done.recorded("train")
    assert recorded, "nothing recorded"
    assert all(n % 2 == 0 for n in recorded)


NO_LOOP = {
    "a loop in C": "list(map(lambda batch: (grads(batch), sgd.step()), data))",
    "recursion": """
        def descend(n):
            if n == 0: return
            grads(data[0]); sgd.step()
            descend(n - 1)
        descend(6)
    """,
}


@pytest.mark.parametrize("name", NO_LOOP)
def test_without_a_loop_each_optimizer_step_ends_a_step_from_the_third_on(name: str, tmp_path: Path) -> None:
    done = run(NO_LOOP[name], tmp_path)

    assert done.numbers("train") == [1, 2, 3, 4]
    [loop] = done.loops("train")
    assert "each of them ends a step" in loop.evidence[0]


def test_a_derived_optimizer_s_step_is_one_where_no_loop_holds_it(tmp_path: Path) -> None:
    source = """
        class Derived(torch.optim.SGD):
            def step(self, closure=None):
                return super().step(closure)
        derived = Derived(model.parameters(), lr=0.1)
        def go(left):
            grads(data[0])
            derived.step()
            if left: go(left - 1)
        go(9)
    """
    done = monitored(PRELUDE + textwrap.dedent(source), tmp_path)
    assert done.numbers("train") == list(range(1, 9))


def test_steps_that_no_loop_holds_are_counted_for_as_long_as_they_come(tmp_path: Path) -> None:
    done = run("list(map(lambda batch: (grads(batch), sgd.step()), data * 60))", tmp_path)

    assert done.numbers("train") == list(range(1, 359))


def test_micro_batches_before_the_first_step_leave_a_right_proposal_alone(tmp_path: Path) -> None:
    program = """
        for start in range(4):
            train += 1
            for batch in data[:3]: model(batch).sum().backward()
            sgd.step()
            sgd.zero_grad()
    """
    done = run(program, tmp_path, interval=1, warmup=0)

    assert sorted(done.recorded("train")) == [1, 2, 3, 4]
    assert done.loops("other") == []


def test_a_proposal_that_was_wrong_is_taken_back_with_the_reason(tmp_path: Path) -> None:
    done = run(PROGRAMS["an update loop whose inner loop does all, as library trainers"], tmp_path)

    [confirmed] = done.loops("train")
    assert confirmed.found == "dynamic"
    [wrong] = done.loops("other")
    assert "comes twice in one run of the loop of line" in wrong.evidence[-1]


NOT_TRAINING = {
    "gradients in an evaluation": """
        def evaluate():
            for batch in data:
                batch = batch.clone().requires_grad_()
                model(batch).sum().backward()
        evaluate()
        for batch in data:
            train += 1
            grads(batch)
            sgd.step()
    """,
}


@pytest.mark.parametrize("name", NOT_TRAINING)
def test_only_the_training_loop_counts(name: str, tmp_path: Path) -> None:
    done = run(NOT_TRAINING[name], tmp_path)

    assert len(done.numbers("train")) == done.names["train"]


def test_code_that_is_too_long_to_be_analysed_is_told_of_and_still_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lines = "\n".join(f"    x{n % 50} = len(str({n}))" for n in range(2500))
    with caplog.at_level("WARNING", "tcmon"):
        done = run(f"for batch in data:\n    train += 1\n    grads(batch)\n    sgd.step()\n{lines}\n", tmp_path)

    assert len(done.numbers("train")) == done.names["train"] == 6
    [warning] = [record.getMessage() for record in caplog.records]
    assert warning.startswith("can't analyse the loops of <module>")
    assert "too long" in warning
