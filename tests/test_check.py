"""`tcmon check` finds what is wrong with a run, and finds nothing wrong with one that is right."""

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest
from monitored import monitored
from program_runs import tcmon_run
from trace_builder import end, header, loop, of_step, parameter, state, step, steps, write_run

from tcmon.checks.rules import RULES
from tcmon.checks.run import Checked, check
from tcmon.trace.reader import open_run

PRELUDE = """
import random
import torch
import torch.nn.functional as F
torch.manual_seed(0)

class Net(torch.nn.Module):
    def __init__(self, kinds=3):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU())
        self.drop, self.head, self.side = torch.nn.Dropout(0.2), torch.nn.Linear(8, kinds), torch.nn.Linear(8, 1)
    def forward(self, x):
        h = self.drop(self.body(x))
        return self.head(h), self.side(h)

def batches(count=44, size=6):
    for _ in range(count):
        x = torch.randn(size, 4)
        yield x, (x.sum(1) > 0).long()

net = Net()
opt = torch.optim.SGD(net.parameters(), lr=0.05)

def losses(x, y):
    out, side = net(x)
    return F.cross_entropy(out, y) + side.pow(2).mean()

def evaluate():
    with torch.no_grad():
        for x, y in batches(24):
            F.cross_entropy(net(x)[0], y)
"""

WRONG = {
    "gradients-never-cleared": """
        for x, y in batches():
            losses(x, y).backward()
            opt.step()
    """,
    "no-gradient-at-step": """
        for x, y in batches():
            losses(x, y).backward()
            opt.zero_grad()
            opt.step()
    """,
    "no-gradient-at-step, of zeros": """
        for x, y in batches():
            losses(x, y).backward()
            opt.zero_grad(set_to_none=False)
            opt.step()
    """,
    "no-gradient-at-step, of another model": """
        opt = torch.optim.Adam(Net().parameters())
        for x, y in batches():
            opt.zero_grad()
            losses(x, y).backward()
            opt.step()
    """,
    "in-no-optimizer, a head replaced": """
        net.head = torch.nn.Linear(8, 5)
        for x, y in batches():
            net.zero_grad()
            losses(x, y).backward()
            opt.step()
    """,
    "in-no-optimizer, layers in a list": """
        class Plain(Net):
            def __init__(self):
                super().__init__()
                self.more = [torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)]
            def forward(self, x):
                for layer in self.more: x = layer(x)
                return super().forward(x)
        net = Plain()
        opt = torch.optim.AdamW(net.parameters())
        for x, y in batches():
            opt.zero_grad()
            losses(x, y).backward()
            opt.step()
    """,
    "no-gradient-reaches": """
        for x, y in batches():
            opt.zero_grad()
            out, side = net(x)
            (F.cross_entropy(out, y) + side.detach().pow(2).mean()).backward()
            opt.step()
    """,
    "not-finite": """
        for n, (x, y) in enumerate(batches()):
            opt.zero_grad()
            (losses(x, y) * (float("nan") if n > 9 else 1)).backward()
            opt.step()
    """,
    "trained-in-eval-mode": """
        for epoch in range(3):
            for x, y in batches(24):
                opt.zero_grad()
                losses(x, y).backward()
                opt.step()
            net.eval()
            evaluate()
    """,
    "evaluated-in-train-mode": """
        for epoch in range(2):
            net.train()
            for x, y in batches(24):
                opt.zero_grad()
                losses(x, y).backward()
                opt.step()
            evaluate()
    """,
    "learning-rate-vanished": """
        plan = torch.optim.lr_scheduler.StepLR(opt, 1, gamma=0.3)
        for x, y in batches(100):
            opt.zero_grad()
            losses(x, y).backward()
            opt.step()
            plan.step()
    """,
    "clipped-while-scaled": """
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for x, y in batches():
            opt.zero_grad()
            scaler.scale(losses(x, y)).backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            scaler.step(opt)
            scaler.update()
    """,
    "optimizer-made-anew": """
        for x, y in batches():
            opt = torch.optim.Adam(net.parameters(), lr=0.01)
            losses(x, y).backward()
            opt.step()
            opt.zero_grad()
    """,
    "same-batch-again": """
        twice = [pair for pair in batches() for _ in range(2)]
        for x, y in twice:
            opt.zero_grad()
            losses(x.clone(), y).backward()
            opt.step()
    """,
    "same-batch-again, and in all recorded steps": """
        for x, y in list(batches(1)) * 44:
            opt.zero_grad()
            losses(x.clone(), y).backward()
            opt.step()
    """,
    "same-batch-again, by a module beside the loss": """
        criterion = torch.nn.CrossEntropyLoss()
        for x, y in [pair for pair in batches() for _ in range(2)]:
            opt.zero_grad()
            out, side = net(x.clone())
            (criterion(out, y) + side.pow(2).mean()).backward()
            opt.step()
    """,
    "probabilities-as-logits": """
        for x, y in batches():
            opt.zero_grad()
            out, side = net(x)
            (F.cross_entropy(out.softmax(1), y) + side.pow(2).mean()).backward()
            opt.step()
    """,
    "state-kept-without-copy": """
        for epoch in range(4):
            for x, y in batches(24):
                opt.zero_grad()
                losses(x, y).backward()
                opt.step()
            if epoch == 1: best = dict(net.state_dict())
    """,
    "graphs-kept": """
        seen = []
        for x, y in batches():
            opt.zero_grad()
            loss = losses(x, y)
            loss.backward()
            opt.step()
            seen.append(loss)
    """,
    "graphs-kept, in a sum": """
        total = 0
        for x, y in batches():
            opt.zero_grad()
            loss = losses(x, y)
            loss.backward()
            opt.step()
            total += loss
    """,
    "evaluation-builds-graphs": """
        def validate():
            for x, y in batches(24):
                F.cross_entropy(net(x)[0], y)
        for epoch in range(2):
            net.train()
            for x, y in batches(24):
                opt.zero_grad()
                losses(x, y).backward()
                opt.step()
            net.eval()
            validate()
    """,
    "loss-broadcast": """
        __import__("warnings").simplefilter("ignore")
        for x, y in batches():
            opt.zero_grad()
            out, side = net(x)
            (F.mse_loss(side, y.float()) + out.pow(2).mean()).backward()
            opt.step()
    """,
    "gradients-never-cleared, of some": """
        for x, y in batches():
            net.body.zero_grad()
            losses(x, y).backward()
            opt.step()
    """,
    "gradients-never-cleared, with two backward passes": """
        for x, y in batches():
            losses(x, y).backward()
            net(x)[1].pow(2).mean().backward()
            opt.step()
    """,
    "nothing-trainable": """
        net.requires_grad_(False)
        more = torch.nn.Linear(4, 4)
        for x, y in batches():
            opt.zero_grad()
            losses(more(x), y).backward()
            opt.step()
    """,
    "step-changes-nothing": """
        net.to(torch.bfloat16)
        opt = torch.optim.SGD(net.parameters(), lr=1e-7)
        for x, y in batches(66):
            opt.zero_grad()
            losses(x.bfloat16(), y).backward()
            opt.step()
    """,
    "learning-rate-zero": """
        plan = torch.optim.lr_scheduler.LambdaLR(opt, lambda epoch: epoch / 10)
        for x, y in batches(66):
            opt.zero_grad()
            losses(x, y).backward()
            opt.step()
    """,
    "learning-rate-vanished, early to a hundredth": """
        plan = torch.optim.lr_scheduler.MultiStepLR(opt, [6, 10])
        for epoch in range(12):
            for x, y in batches(15):
                opt.zero_grad()
                losses(x, y).backward()
                opt.step()
                plan.step()
    """,
    "warm-up-without-end": """
        plan = torch.optim.lr_scheduler.LambdaLR(opt, lambda n: min(1.0, (n + 1) / 100))
        for epoch in range(6):
            for x, y in batches(15):
                opt.zero_grad()
                losses(x, y).backward()
                opt.step()
            plan.step()
    """,
    "updates-too-large": """
        opt = torch.optim.SGD(net.parameters(), lr=1.0, weight_decay=0.9)
        for x, y in batches(88):
            opt.zero_grad()
            losses(x, y).backward()
            for p in net.parameters(): p.grad.normal_()
            opt.step()
    """,
    "loss-constant": """
        net = Net(1)
        opt = torch.optim.Adam(net.parameters(), lr=1e-3)
        for x, y in batches(66):
            opt.zero_grad()
            F.cross_entropy(net(x)[0], 0 * y).backward()
            opt.step()
    """,
    "gradient-always-zero": """
        for x, y in batches(88):
            opt.zero_grad()
            out, side = net(x)
            (F.cross_entropy(out, y) + 0 * side.pow(2).mean()).backward()
            opt.step()
    """,
    "tied-weights-apart": """
        class Tied(Net):
            def __init__(self):
                super().__init__()
                self.words = torch.nn.Embedding(9, 8)
                self.out = torch.nn.Linear(8, 9, bias=False)
                self.out.weight.data.copy_(self.words.weight.data)
            def forward(self, y):
                return self.out(self.words(y))
        net = Tied()
        opt = torch.optim.Adam([*net.words.parameters(), *net.out.parameters()])
        for x, y in batches():
            opt.zero_grad()
            F.cross_entropy(net(y), y).backward()
            opt.step()
    """,
    "clipped-after-step": """
        for x, y in batches():
            opt.zero_grad()
            (3 * losses(x, y)).backward()
            opt.step()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)
    """,
}

RIGHT = {
    "plain training with evaluation": """
        plan = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 2)
        for epoch in range(2):
            net.train()
            for x, y in batches():
                opt.zero_grad()
                losses(x, y).backward()
                torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
                opt.step()
            plan.step()
            net.eval()
            evaluate()
    """,
    "gradients accumulated": """
        for n, (x, y) in enumerate(batches(88)):
            (losses(x, y) / 4).backward()
            if n % 4 == 3:
                opt.step()
                opt.zero_grad()
    """,
    "gradients accumulated in an inner loop": """
        for _ in range(44):
            opt.zero_grad()
            for x, y in batches(4):
                (losses(x, y) / 4).backward()
            opt.step()
    """,
    "mixed precision, unscaled and clipped, with overflows": """
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=5)
        for n, (x, y) in enumerate(batches(88)):
            opt.zero_grad()
            scaler.scale(losses(x, y) * (float("inf") if n % 11 == 10 else 1)).backward()
            scaler.unscale_(opt)
            torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            scaler.step(opt)
            scaler.update()
    """,
    "two optimizers against each other": """
        other = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
        opt_g = torch.optim.Adam(other.parameters(), lr=1e-3)
        for x, y in batches(66):
            fake = other(torch.randn(6, 2))
            opt.zero_grad()
            (losses(x, y) - net(fake.detach())[1].mean()).backward()
            opt.step()
            opt_g.zero_grad()
            net(fake)[1].mean().backward()
            opt_g.step()
    """,
    "a frozen body and a part in evaluation mode": """
        net.body.requires_grad_(False)
        opt = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=1e-3)
        for x, y in batches(66):
            net.train()
            net.body.eval()
            opt.zero_grad()
            losses(x, y).backward()
            opt.step()
    """,
    "a head that is not used, and one that is at times": """
        net.unused = torch.nn.Linear(8, 2)
        opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
        for n, (x, y) in enumerate(batches(88)):
            opt.zero_grad()
            out, side = net(x)
            (F.cross_entropy(out, y) + (side.pow(2).mean() if n % 2 else 0)).backward()
            opt.step()
    """,
    "the full batch in each step": """
        [(x, y)] = batches(1, 32)
        for _ in range(66):
            opt.zero_grad()
            losses(x, y).backward()
            opt.step()
    """,
    "several passes over one batch on purpose": """
        for _ in range(12):
            [(x, y)] = batches(1, 32)
            for turn in range(6):
                opt.zero_grad()
                losses(x, y).backward()
                opt.step()
    """,
    "a warm-up that starts at zero, and a rate that ends at zero": """
        plan = torch.optim.lr_scheduler.LambdaLR(opt, lambda n: min(n / 10, 1.0) * (1 - n / 88))
        for x, y in batches(88):
            opt.zero_grad()
            losses(x, y).backward()
            opt.step()
            plan.step()
    """,
    "states that are copied, saved or loaded elsewhere, and losses that are kept as numbers": """
        import copy, io
        __import__("warnings").simplefilter("ignore")
        seen, total, twin = [], 0, Net()
        for epoch in range(5):
            for x, y in batches(24):
                opt.zero_grad()
                loss = losses(x, y)
                loss.backward()
                opt.step()
                seen.append(loss.detach())
                total += loss.item()
                F.mse_loss(net(x)[1], torch.zeros(1))
            best = copy.deepcopy(net.state_dict())
            state = net.state_dict()
            torch.save({"model": state}, io.BytesIO())
            again = net.state_dict()
            twin.load_state_dict(again)
        net.load_state_dict(best)
    """,
    "a warm-up in epochs": """
        plan = torch.optim.lr_scheduler.LambdaLR(opt, lambda n: min(1.0, (n + 1) / 4) * 0.1 ** (n // 5))
        for epoch in range(8):
            for x, y in batches(12):
                opt.zero_grad()
                losses(x, y).backward()
                opt.step()
            plan.step()
    """,
    "a run that ends within its warm-up": """
        plan = torch.optim.lr_scheduler.LinearLR(opt, 0.001, total_iters=1000)
        for x, y in batches(88):
            opt.zero_grad()
            losses(x, y).backward()
            opt.step()
            plan.step()
    """,
    "adapters that start at zero beside frozen weights": """
        class Adapted(torch.nn.Module):
            def __init__(self, base):
                super().__init__()
                self.base = base
                self.down = torch.nn.Parameter(torch.randn(2, base.in_features))
                self.up = torch.nn.Parameter(torch.zeros(base.out_features, 2))
            def forward(self, x):
                return self.base(x) + x @ self.down.T @ self.up.T
        net.requires_grad_(False)
        net.head, net.side = Adapted(net.head), Adapted(net.side)
        opt = torch.optim.AdamW(net.parameters(), lr=1e-2)
        for x, y in batches(88):
            opt.zero_grad()
            losses(x, y).backward()
            opt.step()
    """,
    "layers that are copies of one another, and tied weights": """
        class Layers(torch.nn.Module):
            def __init__(self):
                super().__init__()
                one = torch.nn.Linear(8, 8, bias=False)
                self.words = torch.nn.Embedding(9, 8)
                self.layers = torch.nn.ModuleList(__import__("copy").deepcopy(one) for _ in range(3))
                self.out = torch.nn.Linear(8, 9)
                self.out.weight = self.words.weight
            def forward(self, y):
                h = self.words(y)
                for layer in self.layers: h = h + layer(h).tanh()
                return self.out(h)
        net = Layers()
        opt = torch.optim.Adam(net.parameters())
        for x, y in batches():
            opt.zero_grad()
            F.cross_entropy(net(y), y).backward()
            opt.step()
    """,
    "a part of the loss that sets in later": """
        for n, (x, y) in enumerate(batches(130)):
            opt.zero_grad()
            out, side = net(x)
            (F.cross_entropy(out, y) + min(1, n // 30) * side.pow(2).mean()).backward()
            opt.step()
    """,
    "a policy gradient": """
        for episode in range(66):
            opt.zero_grad()
            seen = torch.randn(10, 4)
            chosen = torch.distributions.Categorical(logits=net(seen)[0])
            action = chosen.sample()
            reward = (action == (seen.sum(1) > 0)).float()
            (-(chosen.log_prob(action) * (reward - reward.mean())).mean() + net(seen)[1].pow(2).mean()).backward()
            opt.step()
    """,
    "a teacher in evaluation mode": """
        teacher = Net().eval()
        for x, y in batches(66):
            opt.zero_grad()
            with torch.no_grad():
                goal = teacher(x)[0].softmax(1)
            out, side = net(x)
            (F.kl_div(out.log_softmax(1), goal, reduction="batchmean") + side.pow(2).mean()).backward()
            opt.step()
    """,
    "soft labels that are no logits": """
        for x, y in batches(66):
            opt.zero_grad()
            out, side = net(x)
            (F.cross_entropy(out, F.one_hot(y, 3).float()) + side.pow(2).mean()).backward()
            opt.step()
    """,
}


def checked(program: str, folder: Path) -> Checked:
    return check(monitored(PRELUDE + textwrap.dedent(program), folder, record=("state", "loss")).run)


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_found_and_nothing_else(name: str, tmp_path: Path) -> None:
    found = [finding.rule for finding in checked(WRONG[name], tmp_path).findings]
    expected = name.partition(",")[0]
    allowed = {expected}
    if expected in ("loss-constant", "nothing-trainable"):
        allowed |= {"no-gradient-at-step", "no-gradient-reaches", "gradient-always-zero", "in-no-optimizer"}
    if "replaced" in name or "another" in name:
        # Two sides of one thing: parameters without an optimizer, an optimizer without gradients.
        allowed |= {"in-no-optimizer", "no-gradient-at-step"}
    assert expected in found
    assert set(found) <= allowed


@pytest.mark.parametrize("name", RIGHT)
def test_no_alarm_is_raised_by(name: str, tmp_path: Path) -> None:
    result = checked(RIGHT[name], tmp_path)
    assert result.findings == ()
    assert result.steps >= 3


def test_every_rule_has_a_program_that_it_finds() -> None:
    assert {rule.id for rule in RULES} == {name.partition(",")[0] for name in WRONG}
    assert all((rule.__doc__ and "ilent" in rule.__doc__) or rule.id == "optimizer-made-anew" for rule in RULES)


def of_ranks(folder: Path, hashes: list[list[str]], batches: list[list[str]]) -> Checked:
    """The check of a run whose ranks had these parameters, before and after each step, and got these batches."""
    ranks = []
    for rank, (contents, given) in enumerate(zip(hashes, batches, strict=True)):
        records: list[dict[str, Any]] = [header(pid=100 + rank), loop(1), parameter(1, "a"), steps([100] * len(given))]
        for n, batch in enumerate(given, 1):
            before, after = contents[n - 1], contents[n]
            modes = of_step("modes", n, module=["M"], training=[True], mixed=[[]], sensitive=[0], stepped=[True])
            inputs = of_step("inputs", n, module=["M"], hash=[batch], reused=[False], logits=0, probabilities=0)
            records += [state(n, [1], before=[before], after=[after]), modes, inputs, step(n, 100 * (n - 1), 100)]
        ranks.append([*records, end()])
    write_run(folder, ranks[0])
    (folder / "trace-4242.jsonl").rename(folder / "trace-rank0.0-100.jsonl")
    for rank, records in enumerate(ranks):
        text = "".join(json.dumps(record) + "\n" for record in records)
        (folder / f"trace-rank{rank}.0-{100 + rank}.jsonl").write_text(text)
    return check(open_run(folder))


def test_replicas_that_come_apart_are_told_from_parts_of_a_model_and_from_replicas_that_meet_again(
    tmp_path: Path,
) -> None:
    own = [["p", "q", "r"], ["s", "t", "u"]]
    cases = {
        "apart": ([["a", "b", "c", "d"], ["a", "B", "C", "D"]], own, ["replicas-apart"]),
        "together": ([["a", "b", "c", "d"], ["a", "b", "c", "d"]], own, []),
        "parts": ([["a", "b", "c", "d"], ["A", "B", "C", "D"]], own, []),
        "averaged now and then": ([["a", "b", "c", "d"], ["a", "B", "c", "D"]], own, []),
        "same batches": ([["a", "b", "c", "d"]] * 2, [own[0]] * 2, ["ranks-get-the-same-batch"]),
        "same batches for parts": ([["a", "b", "c", "d"], ["A", "B", "C", "D"]], [own[0]] * 2, []),
    }
    for name, (hashes, batches, expected) in cases.items():
        found = of_ranks(tmp_path / name, hashes, batches)
        assert [finding.rule for finding in found.findings] == expected, name


def made_up(folder: Path) -> Path:
    """A run whose gradients are never cleared."""
    records: list[dict[str, Any]] = [header(), loop(1), parameter(1, "a[1;31m.weight"), steps([100] * 4)]
    for n in (1, 2, 3):
        records += [state(n, [1], grad_before=[0.5 if n > 1 else None]), of_step("loss", n, value=[1.0])]
        records.append(step(n, 100 * (n - 1), 100))
    return write_run(folder, [*records, end()])


def test_the_command_tells_prints_and_fails_as_asked(tmp_path: Path) -> None:
    made_up(tmp_path / "run")
    shown = tcmon_run("check", "run", cwd=tmp_path)
    assert "error  gradients-never-cleared, step 2" in shown.stdout
    assert "\x1b" not in shown.stdout, "neither colours nor what a name holds"
    [finding] = json.loads(tcmon_run("check", "run", "--json", cwd=tmp_path).stdout)
    assert (finding["rule"], finding["severity"], finding["n"]) == ("gradients-never-cleared", "error", 2)
    for options, code in (
        (["--fail-on", "error"], 1),
        (["--fail-on", "hint"], 1),
        (["--fail-on", "error", "--ignore", "gradients-never-cleared"], 0),
        ([], 0),
    ):
        assert tcmon_run("check", "run", *options, cwd=tmp_path).returncode == code
    refused = tcmon_run("check", "run", "--ignore", "everything", cwd=tmp_path)
    assert refused.returncode == 2
    assert "there is no rule 'everything'" in refused.stderr


def test_a_run_without_state_says_that_nothing_can_be_told(tmp_path: Path) -> None:
    write_run(tmp_path / "run", [header(), loop(1), step(1, 0, 10), end()])
    assert "nothing can be told" in tcmon_run("check", "run", cwd=tmp_path).stdout
    assert open_run(tmp_path / "run").processes
