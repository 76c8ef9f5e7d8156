"""Threads, forks, generators and the garbage collector at their most inconvenient: numbers stay exact."""

import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from monitored import STAND_INS, monitored

HELPERS = (
    STAND_INS
    + """
import gc, os, sys, threading
train = 0
lock = threading.Lock()

def work(n):
    return n if n == 0 else work(n - 1)

def together(count, target, *args):
    start = threading.Barrier(count)
    def run(i):
        start.wait()
        target(i, *args)
    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()

def count(steps):
    global train
    with lock: train += steps
"""
)


@pytest.fixture
def quick_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


PROGRAMS = {
    "eight threads": """
        def loop(i):
            for step in range(300):
                work(3); loss.backward(); optimizer.step()
            count(300)
        together(8, loop)
    """,
    "eight threads in many short loops": """
        def loop(i):
            for epoch in range(40):
                for step in range(i):
                    loss.backward(); optimizer.step()
            count(40 * i)
        together(8, loop)
    """,
    "eight threads, each with code of its own": """
        source = "def loop():\\n for step in range(200):\\n  loss.backward(); optimizer.step()\\n"
        def run(i):
            names = dict(globals())
            exec(compile(source, f"generated-{i}.py", "exec"), names)
            names["loop"]()
            count(200)
        together(8, run)
    """,
    "exceptions out of loops in all threads": """
        def loop(i):
            for step in range(10):
                loss.backward(); optimizer.step()
                if step == i: raise ValueError(step)
        def run(i):
            for _ in range(30):
                try: loop(i)
                except ValueError: pass
            count(30 * (i + 1))
        together(8, run)
    """,
    "generators taken on and closed in other threads": """
        import queue
        def losses():
            try:
                for step in range(10):
                    loss.backward(); optimizer.step()
                    yield step
            finally:
                work(2)
        made = queue.SimpleQueue()
        def make(i):
            for _ in range(40):
                each = losses()
                next(each)
                made.put(each)
            count(40)
        def take(i):
            for _ in range(40):
                each = made.get()
                next(each)
                each.close()
            count(40)
        together(8, lambda i: (make if i % 2 else take)(i))
    """,
    "generators that the garbage collector closes": """
        def losses():
            holder = []
            me = yield holder
            for step in range(3):
                loss.backward(); optimizer.step()
                yield step
        def loop(i):
            for _ in range(100):
                each = losses()
                next(each).append(each)
                each.send(None)
                del each
            count(100)
        gc.set_threshold(5, 2, 2)
        together(4, loop)
        gc.set_threshold(700, 10, 10)
    """,
    "finalizers that train": """
        class Late:
            def __init__(self): self.itself = self
            def __del__(self):
                for step in range(2):
                    loss.backward(); optimizer.step()
        def loop(i):
            for step in range(100):
                Late()
                loss.backward(); optimizer.step()
        gc.set_threshold(10, 2, 2)
        together(4, loop)
        gc.set_threshold(700, 10, 10)
    """,
    "threads that start threads in their steps": """
        def inner():
            for step in range(3):
                loss.backward(); optimizer.step()
            count(3)
        def loop(i):
            for step in range(12):
                thread = threading.Thread(target=inner)
                thread.start()
                loss.backward(); optimizer.step()
                thread.join()
            count(12)
        together(4, loop)
    """,
    "forks from within steps of several threads": """
        # One fork at a time: libraries that guard locks of theirs around forks (filelock) refuse two at once.
        forking = threading.Lock()
        def in_child():
            for step in range(5):
                work(3); loss.backward(); optimizer.step()
            os._exit(7)
        def loop(i):
            for step in range(6):
                loss.backward(); optimizer.step()
                work(9)
                if step == 3:
                    with forking: child = os.fork()
                    if child == 0: in_child()
                    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
            count(6)
        together(4, loop)
    """,
}


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("interval", [1, 7])
@pytest.mark.parametrize("name", PROGRAMS)
def test_numbers_are_exact(
    name: str, interval: int, tmp_path: Path, quick_switches: None, caplog: pytest.LogCaptureFixture
) -> None:
    done = monitored(HELPERS + textwrap.dedent(PROGRAMS[name]), tmp_path, interval=interval, warmup=0)

    assert caplog.messages == []
    numbers = done.numbers("train")
    assert [n for n, times in Counter(numbers).items() if times > 1] == []
    assert sorted(numbers) == list(range(1, len(numbers) + 1))
    if "finalizers" not in name:  # a finalizer may run within a callback, where nothing is seen
        assert len(numbers) == done.names["train"]
    recorded = done.recorded("train")
    assert set(recorded) == {n for n in numbers if n % interval == 0}
    reading = done.run.processes[0].read()
    assert list(reading)
    assert reading.damaged == 0
