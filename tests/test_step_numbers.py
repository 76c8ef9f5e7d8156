"""Step numbers are exact, whatever the shape of the loop: they are compared to what the program itself counts.

Every program counts its training iterations in `train`, its evaluation iterations in `evals`; both at the start of the
loop's body.
"""

import textwrap
from itertools import pairwise
from pathlib import Path

import pytest
from monitored import STAND_INS, monitored

TRAINING = {
    "for": """
        for batch in range(7):
            train += 1
            loss.backward(); optimizer.step()
    """,
    "for with continue": """
        for batch in range(7):
            train += 1
            if batch % 2: continue
            loss.backward(); optimizer.step()
    """,
    "for with several continues": """
        for batch in range(9):
            train += 1
            if batch % 2: continue
            loss.backward()
            if batch % 3: continue
            optimizer.step()
    """,
    "for with break": """
        for batch in range(7):
            train += 1
            loss.backward(); optimizer.step()
            if batch == 3: break
    """,
    "for with break first": """
        for batch in range(7):
            train += 1
            if batch == 3: break
            loss.backward(); optimizer.step()
    """,
    "for with else": """
        for batch in range(3):
            train += 1
            loss.backward(); optimizer.step()
        else:
            optimizer.zero_grad()
    """,
    "for over nothing, then over something": """
        for data in ((), (1, 2), (), (3,)):
            for batch in data:
                train += 1
                loss.backward(); optimizer.step()
    """,
    "epochs": """
        for epoch in range(3):
            for batch in range(4):
                train += 1
                loss.backward(); optimizer.step()
    """,
    "while": """
        step = 0
        while step < 6:
            train += 1; step += 1
            loss.backward(); optimizer.step()
    """,
    "while with continue": """
        step = 0
        while step < 6:
            train += 1; step += 1
            if step % 2: continue
            loss.backward(); optimizer.step()
    """,
    "while over lines, with and": """
        step = 0
        while (
            step < 6
            and train < 5
        ):
            train += 1; step += 1
            if step == 2: continue
            loss.backward(); optimizer.step()
    """,
    "while over lines, with or": """
        step = 0
        while (
            step < 2
            or train < 5
        ):
            train += 1; step += 1
            loss.backward(); optimizer.step()
    """,
    "while true": """
        batches = iter(range(6))
        while True:
            train += 1
            batch = next(batches, None)
            if batch is None: break
            loss.backward(); optimizer.step()
    """,
    "while true, ended where the data ends": """
        for epoch in range(2):
            batches = iter(range(6))
            while True:
                try:
                    batch = next(batches)
                except StopIteration:
                    break
                train += 1
                loss.backward(); optimizer.step()
    """,
    "while true, returned from where the data ends": """
        def run():
            global train
            batches = iter(range(6))
            while True:
                try:
                    batch = next(batches)
                    train += 1
                    loss.backward(); optimizer.step()
                except StopIteration:
                    optimizer.zero_grad()
                    return
                finally:
                    optimizer.zero_grad()
        run(); run()
    """,
    "while, ended where the data of another iterator ends": """
        for epoch in range(2):
            batches, n = iter(range(6)), 0
            while n < 100:
                n += 1
                try:
                    batch = next(batches)
                except (KeyError):
                    raise
                except StopIteration:
                    break
                except ValueError:
                    continue
                train += 1
                loss.backward(); optimizer.step()
    """,
    "while, with data that begins again": """
        batches = iter(range(4))
        while train < 10:
            try:
                batch = next(batches)
            except StopIteration:
                batches = iter(range(4))
                batch = next(batches)
            train += 1
            loss.backward(); optimizer.step()
    """,
    "for, ended where the data of another iterator ends": """
        targets = iter(range(4))
        for batch in range(9):
            try:
                target = next(targets)
            except StopIteration:
                break
            train += 1
            loss.backward(); optimizer.step()
    """,
    "async for, ended where other data ends": """
        import asyncio
        async def numbers(count):
            for n in range(count): yield n
        async def run():
            global train
            others = numbers(3)
            while True:
                try:
                    other = await anext(others)
                except StopAsyncIteration:
                    break
                train += 1
                loss.backward(); optimizer.step()
        asyncio.run(run())
    """,
    "while true, ended by an exception": """
        batches = iter(range(6))
        try:
            while True:
                train += 1
                batch = next(batches)
                loss.backward(); optimizer.step()
        except StopIteration:
            pass
    """,
    "while whose body begins with a while": """
        step = 0
        while step < 40:
            while step % 4:
                step += 1
                if step == 3: continue
                step += 2
            train += 1; step += 1
            loss.backward(); optimizer.step()
    """,
    "while with a while true first": """
        step = 0
        while step < 8:
            while True:
                step += 1
                if step % 2: break
            train += 1
            loss.backward(); optimizer.step()
    """,
    "caught exceptions": """
        for batch in range(8):
            train += 1
            try:
                if batch % 3 == 1: raise ValueError(batch)
                loss.backward(); optimizer.step()
            except ValueError:
                if batch > 5: continue
                optimizer.zero_grad()
            finally:
                optimizer.zero_grad()
    """,
    "an exception that is caught outside": """
        for epoch in range(3):
            try:
                for batch in range(5):
                    train += 1
                    if batch == 3: raise RuntimeError
                    loss.backward(); optimizer.step()
            except RuntimeError:
                pass
    """,
    "an exception that leaves the function": """
        def run():
            global train
            for batch in range(5):
                train += 1
                if batch == 3: raise RuntimeError
                loss.backward(); optimizer.step()
        for epoch in range(3):
            try: run()
            except RuntimeError: pass
    """,
    "return from the loop": """
        def run(last):
            global train
            for batch in range(5):
                train += 1
                loss.backward(); optimizer.step()
                if batch == last: return batch
        for last in (0, 2, 9): run(last)
    """,
    "return within with and finally": """
        import contextlib
        def run(last):
            global train
            for batch in range(5):
                train += 1
                with contextlib.nullcontext():
                    try:
                        loss.backward(); optimizer.step()
                        if batch == last: return batch
                    finally:
                        optimizer.zero_grad()
        for last in (0, 2, 9): run(last)
    """,
    "break within with": """
        import contextlib
        for epoch in range(3):
            for batch in range(5):
                train += 1
                with contextlib.nullcontext():
                    loss.backward(); optimizer.step()
                    if batch == epoch: break
    """,
    "match": """
        for batch in range(6):
            train += 1
            match batch:
                case 0: continue
                case 1 | 2: optimizer.zero_grad()
                case _: loss.backward()
            optimizer.step()
    """,
    "an inner loop that accumulates": """
        for batch in range(5):
            train += 1
            for micro in range(4):
                loss.backward()
            optimizer.step()
    """,
    "a step every second iteration": """
        for batch in range(6):
            train += 1
            loss.backward()
            if batch % 2: optimizer.step()
    """,
    "a last step after the loop": """
        for epoch in range(2):
            for batch in range(5):
                train += 1
                loss.backward()
                if batch % 2: optimizer.step()
            optimizer.step()
    """,
    "several optimizers in turn": """
        optimizers = [Optimizer(), Optimizer()]
        for batch in range(5):
            train += 1
            for opt in optimizers: opt.zero_grad()
            loss.backward()
            for opt in optimizers: opt.step()
    """,
    "several optimizers by index": """
        optimizers = [Optimizer(), Optimizer()]
        for batch in range(5):
            train += 1
            loss.backward()
            for i in range(len(optimizers)): optimizers[i].step()
    """,
    "a critic's inner turns": """
        opt_c, opt_g = Optimizer(), Optimizer()
        for batch in range(4):
            train += 1
            for turn in range(3):
                loss.backward(); opt_c.step()
            loss.backward(); opt_g.step()
    """,
    "comprehensions and other loops around": """
        squares = [n * n for n in range(5)]
        for n in range(3): optimizer.zero_grad()
        for batch in range(4):
            train += 1
            weights = {n: n for n in range(3)}
            loss.backward(); optimizer.step()
            for name in weights: pass
    """,
    "gradients without an optimizer": """
        for batch in range(4):
            train += 1
            loss.backward()
    """,
    "a scheduler beside": """
        scheduler = Optimizer()
        for epoch in range(3):
            for batch in range(4):
                train += 1
                loss.backward(); optimizer.step()
            scheduler.step()
    """,
    "a function that trains on one batch": """
        def train_step(batch):
            loss.backward()
            optimizer.step()
        for epoch in range(2):
            for batch in range(4):
                train += 1
                train_step(batch)
    """,
    "a method that trains on one batch, called through a wrapper": """
        import functools
        class Trainer:
            @functools.cache
            def fit_batch(self, batch):
                loss.backward()
                optimizer.step()
        trainer = Trainer()
        batch = 0
        while batch < 6:
            train += 1
            trainer.fit_batch(batch)
            batch += 1
    """,
    "a generator that is drained": """
        def losses():
            global train
            for batch in range(5):
                train += 1
                loss.backward(); optimizer.step()
                yield batch
        for each in losses(): pass
    """,
    "a generator that is dropped": """
        def losses():
            global train
            for batch in range(5):
                train += 1
                loss.backward(); optimizer.step()
                yield batch
        for each in losses():
            if each == 2: break
        del each
        for each in losses(): pass
    """,
    "two generators in turn": """
        def losses():
            global train
            for batch in range(5):
                train += 1
                loss.backward(); optimizer.step()
                yield batch
        for both in zip(losses(), losses()): pass
    """,
    "async for": """
        import asyncio
        async def batches():
            for n in range(5):
                await asyncio.sleep(0)
                yield n
        async def run():
            global train
            async for batch in batches():
                train += 1
                await asyncio.sleep(0)
                if batch == 2: continue
                loss.backward(); optimizer.step()
        asyncio.run(run())
    """,
    "two coroutines at once": """
        import asyncio
        async def run(n):
            global train
            for batch in range(n):
                train += 1
                await asyncio.sleep(0)
                loss.backward(); optimizer.step()
        async def both(): await asyncio.gather(run(3), run(5))
        asyncio.run(both())
    """,
    "recursion": """
        def run(depth):
            global train
            if depth == 0: return
            run(depth - 1)
            for batch in range(3):
                train += 1
                loss.backward(); optimizer.step()
        run(3)
    """,
    "two threads": """
        import threading
        counts = []
        def run():
            count = 0
            for batch in range(500):
                count += 1
                loss.backward(); optimizer.step()
            counts.append(count)
        threads = [threading.Thread(target=run) for _ in range(2)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        train = sum(counts)
    """,
    "two phases": """
        for batch in range(3):
            train += 1
            loss.backward(); optimizer.step()
        for batch in range(4):
            train += 1
            loss.backward(); optimizer.step()
    """,
    "many instructions": "for batch in range(4):\n    train += 1\n"
    + "".join(f"    v{i} = batch\n" for i in range(400))
    + "    if batch == 2: continue\n    loss.backward(); optimizer.step()\n",
}


@pytest.mark.parametrize("shape", TRAINING)
@pytest.mark.parametrize("interval", [1, 2, 50])
def test_training_steps_are_the_iterations_of_the_loop(shape: str, interval: int, tmp_path: Path) -> None:
    source = STAND_INS + "train = 0\n" + textwrap.dedent(TRAINING[shape])

    done = monitored(source, tmp_path, interval=interval, warmup=0)

    assert done.names["train"] > 2
    assert sorted(done.numbers("train")) == list(range(1, done.names["train"] + 1))
    assert sorted(done.recorded("train")) == [n for n in range(1, done.names["train"] + 1) if n % interval == 0]
    assert done.numbers("eval") == []


@pytest.mark.parametrize("shape", TRAINING)
def test_times_of_steps_are_in_order(shape: str, tmp_path: Path) -> None:
    source = STAND_INS + "train = 0\n" + textwrap.dedent(TRAINING[shape])

    times = monitored(source, tmp_path, interval=3, warmup=0).times("train")

    assert all(0 <= wait <= end for _, wait, end in times.values())
    if "threads" not in shape and "coroutines" not in shape and "generators" not in shape:
        ordered = [times[n] for n in sorted(times)]
        assert all(a[0] + a[2] <= b[0] for a, b in pairwise(ordered))


EVALUATION = {
    "after every epoch": """
        for epoch in range(3):
            for batch in range(4):
                train += 1
                loss.backward(); optimizer.step()
            with torch.no_grad():
                for batch in val_loader:
                    evals += 1
                    model(batch)
    """,
    "in a function, every second step": """
        def evaluate():
            global evals
            for batch in val_loader:
                evals += 1
                model(batch)
        for batch in range(8):
            train += 1
            loss.backward(); optimizer.step()
            if batch % 2: evaluate()
            optimizer.zero_grad()
    """,
    "left by break": """
        def evaluate():
            global evals
            for batch in val_loader:
                evals += 1
                model(batch)
                if batch == 1: break
        for batch in range(8):
            train += 1
            loss.backward(); optimizer.step()
            evaluate()
    """,
    "left by return": """
        def evaluate():
            global evals
            for batch in val_loader:
                evals += 1
                if model(batch) and batch == 1: return 7
        for batch in range(8):
            train += 1
            evaluate()
            loss.backward(); optimizer.step()
    """,
    "left by an exception": """
        def evaluate():
            global evals
            for batch in val_loader:
                evals += 1
                model(batch)
                if batch == 1: raise KeyError
        def safely():
            try: evaluate()
            except KeyError: optimizer.zero_grad()
        for batch in range(8):
            train += 1
            safely()
            loss.backward(); optimizer.step()
    """,
    "left by closing its generator": """
        def evaluate():
            global evals
            for batch in val_loader:
                evals += 1
                yield model(batch)
        for batch in range(8):
            train += 1
            for each in evaluate():
                if evals % 3 == 0: break
            del each
            loss.backward(); optimizer.step()
    """,
    "left by dropping its generator": """
        import gc
        def evaluate():
            global evals
            for batch in val_loader:
                evals += 1
                yield model(batch)
        for batch in range(8):
            train += 1
            cycle = [evaluate()]
            cycle.append(cycle)
            next(cycle[0])
            del cycle
            gc.collect()
            loss.backward(); optimizer.step()
    """,
    "an evaluation within an evaluation": """
        def test(batch):
            global evals
            for part in val_loader:
                evals += 1
                model(part)
        def evaluate():
            global evals
            for batch in val_loader:
                evals += 1
                model(batch)
                if batch: test(batch)
        for batch in range(8):
            train += 1
            if batch % 2: evaluate()
            loss.backward(); optimizer.step()
    """,
    "written in the step itself": """
        for batch in range(8):
            train += 1
            loss.backward(); optimizer.step()
            if batch % 3 == 0:
                model.eval()
                for batch in val_loader:
                    evals += 1
                    model(batch)
                    if batch == 1: break
                model.train()
    """,
}
_MODEL = """
import contextlib
class torch:
    no_grad = contextlib.nullcontext
class Model:
    def __call__(self, batch): return Loss()
    def eval(self): pass
    def train(self): pass
model = Model()
val_loader = range(3)
evals = 0
"""


@pytest.mark.parametrize("shape", EVALUATION)
def test_evaluation_steps_are_counted_apart_and_leave_training_as_it_was(shape: str, tmp_path: Path) -> None:
    source = STAND_INS + _MODEL + "train = 0\n" + textwrap.dedent(EVALUATION[shape])

    done = monitored(source, tmp_path, interval=3, warmup=0, eval_interval=2, eval_warmup=2)

    assert done.names["train"] >= 8
    assert done.names["evals"] >= 6
    assert sorted(done.numbers("train")) == list(range(1, done.names["train"] + 1))
    assert sorted(done.numbers("eval")) == list(range(1, done.names["evals"] + 1))
    assert sorted(done.recorded("train")) == list(range(3, done.names["train"] + 1, 3))
    assert sorted(done.recorded("eval")) == [1, *range(2, done.names["evals"] + 1, 2)]
    # A recorded training step holds its own calls, and none of the evaluation's model calls.
    for step in done.recorded("train").values():
        names = [call.function.qualname for tree in step.calls for call in tree.walk()]
        assert names.count("Loss.backward") == 1
        assert names.count("Optimizer.step") == 1
        assert "Model.__call__" not in names
    for step in done.recorded("eval").values():
        names = [call.function.qualname for tree in step.calls for call in tree.walk()]
        assert names.count("Model.__call__") == 1
        assert "Optimizer.step" not in names


NOT_TRAINING = {
    "a scheduler alone": "for epoch in range(4): scheduler.step()",
    "an environment": "for action in range(4): env.step(action)",
    "a profiler": "for batch in range(4): prof.step()",
    "a progress bar": "for batch in range(4): pbar.step()",
    "a loop over optimizers": "for opt in [optimizer]: opt.step()",
    "a helper loop in an evaluation": "def evaluate():\n    for name in ('a', 'b', 'c'): print(name)\nevaluate()",
    "generation, token by token": ("def sample():\n    model(0)\n    for token in range(5): model(token)\nsample()"),
}


@pytest.mark.parametrize("shape", NOT_TRAINING)
def test_a_loop_that_neither_trains_nor_evaluates_counts_nothing(shape: str, tmp_path: Path) -> None:
    source = STAND_INS + "scheduler = env = prof = pbar = type('S', (), {'step': lambda *_: None})()\n"

    done = monitored(source + NOT_TRAINING[shape], tmp_path, interval=1)

    assert done.numbers("train") == []
    assert done.numbers("eval") == []


def test_an_iteration_that_waits_for_data_says_so(tmp_path: Path) -> None:
    source = STAND_INS + textwrap.dedent("""
        import time
        def batches():
            for n in range(4):
                time.sleep(0.02)
                yield n
        for batch in batches():
            loss.backward(); optimizer.step()
    """)

    times = monitored(source, tmp_path).times("train")

    assert len(times) == 4
    assert all(wait >= 20_000_000 for _, wait, _ in times.values())
