"""Evaluation loops found as they run, and loops that look like them but are none.

The programs count their training steps in `train` and their evaluation steps in `evals`. Names tell nothing here.
"""

import textwrap
from pathlib import Path

import pytest
from monitored import Monitored, monitored

PRELUDE = """
import torch
import torch.nn.functional as F
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
sgd = torch.optim.SGD(net.parameters(), lr=0.1)
data = [(torch.randn(3, 4), torch.tensor([0, 1, 0])) for _ in range(6)]
call, train, evals = net, 0, 0

def fit(pairs):
    global train
    for x, y in pairs:
        train += 1
        sgd.zero_grad()
        F.cross_entropy(call(x), y).backward()
        sgd.step()
"""

EVALUATIONS = {
    "a loss over draws of its own, in a decorated function": """
        @torch.no_grad()
        def guess():
            global evals
            total = 0.0
            for k in range(4):
                evals += 1
                x, y = data[k]
                total += F.cross_entropy(call(x), y).item()
            return total
        for _ in range(3):
            fit(data)
            guess()
    """,
    "the step in a function of its own": """
        def one(pair):
            with torch.no_grad():
                x, y = pair
                return F.cross_entropy(call(x), y)
        def drive(pairs):
            global evals
            for pair in pairs:
                evals += 1
                one(pair)
        for _ in range(2):
            fit(data)
            drive(data[:5])
    """,
    "in inference mode, within a training step": """
        def drive(pairs):
            global evals
            with torch.inference_mode():
                for x, y in pairs:
                    evals += 1
                    F.mse_loss(call(x)[:, 0], y.float())
        for _ in range(2):
            for x, y in data:
                train += 1
                sgd.zero_grad()
                F.cross_entropy(call(x), y).backward()
                sgd.step()
                if train % 3 == 0: drive(data[:4])
    """,
    "with gradients set off, no loss, but a class that says so": """
        class Validation:
            def run(self, pairs):
                global evals
                torch.set_grad_enabled(False)
                it = iter(pairs)
                while True:
                    pair = next(it, None)
                    if pair is None: break
                    evals += 1
                    self.one(pair[0])
                evals += 1  # the iteration that found the end
                torch.set_grad_enabled(True)
            def one(self, x): return call(x)
        for _ in range(2):
            fit(data)
            Validation().run(data)
    """,
    "with the end of the data caught in a while true": """
        class Loop:
            def run(self, pairs):
                global evals
                it = iter(pairs)
                while True:
                    try:
                        x, y = next(it)
                        evals += 1
                        F.cross_entropy(call(x), y)
                    except StopIteration:
                        break
                    finally:
                        self.restarting = False
        for _ in range(2):
            fit(data)
            with torch.no_grad(): Loop().run(data)
    """,
    "with a metric that switches gradients off itself": """
        class Metric:
            @torch.no_grad()
            def update(self, value): self.value = value + 0
            def compute(self):
                with torch.set_grad_enabled(False): return self.value + 1
            def reset(self):
                with torch.inference_mode(): return 0
        metric = Metric()
        def over(pairs):
            global evals
            for x, y in pairs:
                evals += 1
                metric.update(F.mse_loss(call(x)[:, 0], y.float()))
                metric.compute()
                metric.reset()
        def decorator(function):
            def wrapper(*args):
                with torch.inference_mode(): return function(*args)
            return wrapper
        drive = decorator(over)
        for _ in range(2):
            fit(data)
            drive(data)
    """,
    "named for what it measures, with the model behind a method": """
        class Work:
            def __init__(self): self.it = call
            def ask(self, x): return self.it(x)
            @torch.no_grad()
            def mae(self, pairs):
                global evals
                for x, y in pairs:
                    evals += 1
                    (self.ask(x)[:, 0] - y).abs().mean().item()
        for _ in range(2):
            fit(data)
            Work().mae(data)
    """,
    "before any training": """
        def drive(pairs):
            global evals
            with torch.no_grad():
                for x, y in pairs:
                    evals += 1
                    F.nll_loss(call(x), y)
        drive(data)
        fit(data)
    """,
}

FLAGS = {
    "one loop for both, by a flag": """
        def epoch(pairs, learn):
            for x, y in pairs:
                count(learn)
                loss = F.cross_entropy(call(x), y)
                if learn:
                    sgd.zero_grad()
                    loss.backward()
                    sgd.step()
        def count(learn):
            global train, evals
            if learn: train += 1
            else: evals += 1
        for _ in range(3):
            epoch(data, True)
            epoch(data[:4], False)
    """,
    "one loop for both, by an optimizer or none, gradients set": """
        def epoch(pairs, optimizer=None):
            global train, evals
            with torch.set_grad_enabled(optimizer is not None):
                for x, y in pairs:
                    if optimizer is None: evals += 1
                    else: train += 1
                    loss = F.cross_entropy(call(x), y)
                    if optimizer is not None:
                        optimizer.zero_grad()
                        loss.backward()
                        optimizer.step()
        for _ in range(3):
            epoch(data, sgd)
            epoch(data[:4])
    """,
    "one batch to evaluate": """
        def epoch(pairs, learn):
            global train, evals
            for x, y in pairs:
                if learn: train += 1
                else: evals += 1
                loss = F.cross_entropy(call(x), y)
                if learn:
                    sgd.zero_grad()
                    loss.backward()
                    sgd.step()
        for _ in range(3):
            epoch(data, True)
            epoch(data[:1], False)
    """,
}

NONE = {
    "token by token generation": """
        table = torch.nn.Embedding(5, 5)
        @torch.no_grad()
        def speak(n):
            token = torch.tensor([0])
            for _ in range(n):
                token = torch.multinomial(F.softmax(table(token), -1), 1)[:, 0]
        fit(data)
        speak(20)
    """,
    "sampling by many small steps": """
        @torch.no_grad()
        def draw():
            x = torch.randn(3, 4)
            for t in range(10):
                x = x - 0.1 * call(x).repeat(1, 2)
            return x
        fit(data)
        draw()
    """,
    "a teacher in the training step": """
        teacher = torch.nn.Linear(4, 2)
        for x, y in data:
            train += 1
            with torch.no_grad(): target = teacher(x).softmax(-1)
            sgd.zero_grad()
            F.kl_div(call(x).log_softmax(-1), target, reduction="batchmean").backward()
            sgd.step()
    """,
    "features before training": """
        body = torch.nn.Linear(4, 4)
        with torch.no_grad():
            data = [(body(x), y) for x, y in data]
            features = []
            for x, y in data: features.append(body(x))
        fit(data)
    """,
    "statistics before training": """
        with torch.no_grad():
            total = 0
            for x, y in data:
                total = total + call(x).mean()
        fit(data)
    """,
    "an average of weights in the training step": """
        shadow = torch.nn.Linear(4, 2)
        for x, y in data:
            train += 1
            sgd.zero_grad()
            F.cross_entropy(call(x), y).backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            sgd.step()
            with torch.no_grad():
                for a, b in zip(shadow.parameters(), net.parameters()): a.mul_(0.9)
    """,
}


def run(program: str, folder: Path, **options: int) -> Monitored:
    return monitored(PRELUDE + textwrap.dedent(program), folder, **options)


@pytest.mark.parametrize("name", [*EVALUATIONS, *FLAGS])
def test_evaluation_steps_are_counted_apart(name: str, tmp_path: Path) -> None:
    done = run((EVALUATIONS | FLAGS)[name], tmp_path, interval=2, warmup=0)

    assert done.names["train"] >= 6
    assert sorted(done.numbers("train")) == list(range(1, done.names["train"] + 1))
    assert sorted(done.numbers("eval")) == list(range(1, done.names["evals"] + 1))
    assert all(n % 2 == 0 for role in ("train", "eval") for n in done.recorded(role))


@pytest.mark.parametrize("name", NONE)
def test_what_only_looks_like_an_evaluation_counts_nothing(name: str, tmp_path: Path) -> None:
    done = run(NONE[name], tmp_path)

    assert len(done.numbers("train")) == done.names["train"]
    assert done.numbers("eval") == []


def test_forward_passes_without_gradients_in_every_training_step_are_not_looked_at_for_ever(tmp_path: Path) -> None:
    done = run(
        """
        import sys
        teacher = torch.nn.Linear(4, 2)
        module_call = torch.nn.Module._wrapped_call_impl.__code__
        [tool] = [i for i in range(6) if sys.monitoring.get_tool(i) == "tcmon"]
        watched = []
        for x, y in data * 10:
            train += 1
            with torch.no_grad():
                watched.append(sys.monitoring.get_local_events(tool, module_call) != 0)
                target = teacher(x).softmax(-1)
            watched.append(sys.monitoring.get_local_events(tool, module_call) != 0)
            sgd.zero_grad()
            F.kl_div(call(x).log_softmax(-1), target, reduction="batchmean").backward()
            sgd.step()
        """,
        tmp_path,
    )

    inside, after = done.names["watched"][0::2], done.names["watched"][1::2]
    assert any(inside[1:]), "gradients that go off are looked at, at first"
    assert not any(after), "the student's forward pass costs nothing"
    assert not any(inside[30:])
    assert len(done.numbers("train")) == done.names["train"] == 60
    assert done.numbers("eval") == []
