"""Where the program runs, evidence is followed through its objects, and none of its code is run for that."""

import functools
import textwrap
from types import FunctionType
from typing import Any

from tcmon.analysis.live import RuntimeScope
from tcmon.analysis.roles import RoleFinder

OTHER_FILE = """
class Loss:
    def backward(self): pass

class Optimizer:
    def step(self): pass

class Plan(Optimizer):
    pass

Plan.__module__, Optimizer.__module__ = "torch.optim.lr_scheduler", "torch.optim.optimizer"

def update(batch):
    Loss().backward()
    Optimizer().step()

class Trainer:
    def __init__(self): self.rule = Optimizer()
    def learn(self, batch):
        Loss().backward()
        self.rule.step()
"""


def roles(source: str, **names: Any) -> list[tuple[int, str, str]]:
    """Line, role and first reason of each loop of the function `run`."""
    namespace: dict[str, Any] = dict(names)
    exec(compile(OTHER_FILE, "other.py", "exec"), namespace)
    exec(compile(textwrap.dedent(source), "program.py", "exec"), namespace)
    run = namespace["run"]
    assert isinstance(run, FunctionType)
    cells = {
        name: cell.cell_contents for name, cell in zip(run.__code__.co_freevars, run.__closure__ or (), strict=True)
    }
    finder = RoleFinder(run.__code__, scope=RuntimeScope(run.__code__, namespace, cells))
    return [(proposal.loop.line, str(proposal.role), proposal.evidence[0]) for proposal in finder.proposals]


def test_a_function_of_another_module() -> None:
    found = roles("""
        def run():
            for batch in (): update(batch)
    """)
    assert found == [(3, "train", "calls update() -> Optimizer().step() (other.py:15)")]


def test_an_attribute_of_an_object_in_a_closure() -> None:
    found = roles("""
        def make():
            trainer = Trainer()
            def run():
                for batch in (): trainer.learn(batch)
            return run
        run = make()
    """)
    assert found == [(5, "train", "calls learn() -> self.rule.step() (other.py:21)")]


def test_partial_wrapped_bound_and_callable_objects() -> None:
    source = """
        class Callable:
            def __call__(self, batch): update(batch)

        calls = {"partial": partial(update), "bound": Trainer().learn, "object": Callable(),
                 "wrapped": wraps(update)(lambda batch: None)}
        def run():
            for batch in (): calls["NAME"](batch)
    """
    for name in ("partial", "bound", "object", "wrapped"):
        assert [
            role for _, role, _ in roles(source.replace("NAME", name), partial=functools.partial, wraps=functools.wraps)
        ] == ["train"]


def test_what_is_stepped_is_judged_by_its_type() -> None:
    source = """
        thing = CLASS()
        def run():
            for batch in ():
                thing.step()
    """
    assert [line for line, *_ in roles(source.replace("CLASS", "Optimizer"))] == [4]
    assert roles(source.replace("CLASS", "Plan")) == []


def test_no_code_of_the_program_is_run() -> None:
    found = roles("""
        class Meta(type):
            def __getattribute__(cls, name): raise SystemExit
            def mro(cls): return type.mro(cls)
            def __instancecheck__(cls, other): raise SystemExit
            def __eq__(cls, other): raise SystemExit
            __hash__ = type.__hash__

        class Hostile(metaclass=Meta):
            __slots__ = ("x",)
            def __getattribute__(self, name): raise SystemExit
            def __eq__(self, other): raise SystemExit
            __hash__ = None
            __class__ = property(lambda self: 1 / 0)

        class WithDict(Hostile, metaclass=Meta):
            __dict__ = property(lambda self: 1 / 0)

        class Lazy(dict):
            def __getitem__(self, key): raise SystemExit
            def get(self, key, default=None): raise SystemExit

        a, b, c = Hostile(), WithDict(), Lazy()
        def run():
            for batch in ():
                a.x.step(); a.learn(batch); a(batch); Hostile.make(batch); b.learn(batch); b.optimizer.step()
                c["x"].step(); c.get("x").step(); Hostile(batch)
                update(batch)
    """)
    assert [role for _, role, _ in found] == ["train"]
