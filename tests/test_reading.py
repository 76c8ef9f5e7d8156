"""What a function calls, assigns and goes over is read from its bytecode, the same on every version of Python."""

import textwrap
from types import CodeType

from tcmon.analysis.flowgraph import FlowGraph
from tcmon.analysis.reading import Reading


def read(source: str, function: str | None = None) -> Reading:
    code = compile(textwrap.dedent(source), "program.py", "exec")
    if function is not None:
        code = next(each for each in code.co_consts if isinstance(each, CodeType) and each.co_name == function)
    return Reading(FlowGraph(code))


def calls(reading: Reading) -> list[str]:
    return [f"{call.line}: {call}" for call in reading.calls if call.path]


def test_calls_of_names_methods_and_modules() -> None:
    reading = read(
        """
        import torch
        import torch.nn.functional as F
        def f(self, batch, *rest, **more):
            with torch.no_grad(), self.lock:
                a = F.mse_loss(self.net(batch), batch, reduction="sum")
            a.backward()
            self.optimizers["d"].step()
            optimizers[i].step(closure)
            self.scheduler().step(*rest, **more)
            return functools.partial(self.f, batch)
        """,
        "f",
    )
    assert calls(reading) == [
        "5: torch.no_grad()",
        "6: self.net(batch)",
        "6: F.mse_loss()",
        "7: a.backward()",
        "8: self.optimizers['d'].step()",
        "9: optimizers[i].step(closure)",
        "10: self.scheduler()",
        "10: self.scheduler().step(rest)",
        "11: functools.partial(self.f, batch)",
    ]


def test_the_line_of_a_call_is_that_of_the_called_name() -> None:
    reading = read(
        """
        (
            scaler
            .scale(loss)
            .backward()
        )
        """
    )
    assert calls(reading) == ["4: scaler.scale(loss)", "5: scaler.scale(loss).backward()"]


def test_assignments_operations_and_returns() -> None:
    reading = read(
        """
        def f(p, w, pairs):
            w -= lr * w.grad
            p.data = p.data - lr * p.grad
            a, b = torch.autograd.grad(loss, [p, w])
            c, d = p, w
            for i, (x, y) in enumerate(pairs):
                total[i] = x
            return total
        """,
        "f",
    )
    assert [str(each) for each in reading.operations] == ["w -= lr * w.grad"]
    assert sorted(str(store.target) for store in reading.stores) == [
        "a", "b", "c", "d", "i", "p.data", "total[i]", "w", "x", "y",
    ]  # fmt: skip
    assert str(reading.stores[1].value) == "p.data - lr * p.grad"
    assert {str(s.target): str(s.value) for s in reading.stores if str(s.target) in "cd"} == {"c": "p", "d": "w"}
    assert [str(each) for each in reading.iterators.values()] == ["enumerate(pairs)"]
    assert [str(each) for each in reading.returns] == ["total"]
    assert len(reading.grads) == 2


def test_decorators_are_calls_with_the_function() -> None:
    reading = read(
        """
        @torch.no_grad()
        @timed
        def evaluate(): pass
        """
    )
    assert [str(call.function) for call in reading.calls] == ["torch.no_grad", "timed", "torch.no_grad()"]
    assert [str(store.target) for store in reading.stores] == ["evaluate"]


def test_awaited_and_async() -> None:
    reading = read(
        """
        async def f(self):
            async with self.session() as s:
                async for batch in self.batches():
                    loss = await self.step(batch)
                    values = [v async for v in loss]
        """,
        "f",
    )
    assert calls(reading) == ["3: self.session()", "4: self.batches()", "5: self.step(batch)"]
    assert [str(each) for each in reading.iterators.values()] == ["self.batches()", "loss"]
    assert str(next(s.value for s in reading.stores if str(s.target) == "loss")) == "self.step(batch)"


def test_super_is_told_from_a_call_of_that_name() -> None:
    body = read("class A(B):\n    def f(self): return super().f(self.x)", "A").code
    [method] = [each for each in body.co_consts if isinstance(each, CodeType)]
    assert calls(Reading(FlowGraph(method))) == ["2: super().f(self.x)"]
