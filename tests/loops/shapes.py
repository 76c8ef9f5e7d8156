# %% a while whose condition starts on a later line
import torch

step = 0
while (  # tcmon: train
    step < max_steps
    and not stopped
):
    loss = model(next(it))
    loss.backward()
    optimizer.step()
    step += 1

# %% a for whose target and iterator stand on later lines
import torch

for (  # tcmon: train
    inputs,
    targets,
) in zip(
    xs,
    ys,
):
    loss = criterion(
        model(inputs),
        targets,
    )
    loss.backward()
    (
        optimizer
        .step()
    )

# %% a generator
import torch


def losses(loader):
    for batch in loader:  # tcmon: train
        loss = model(batch)
        loss.backward()
        optimizer.step()
        yield loss.item()


for value in losses(loader):
    print(value)

# %% async
import torch


async def train(queue):
    async for batch in queue:  # tcmon: train
        loss = await compute(batch)
        loss.backward()
        optimizer.step()


async def train_step(batch):
    loss = model(await batch)
    loss.backward()
    optimizer.step()


async def main():
    async with session:
        while True:  # tcmon: train
            await train_step(queue.get())


# %% continue, try, finally, with, match, else
import torch

for batch in loader:  # tcmon: train
    if batch is None:
        continue
    try:
        with torch.autocast("cuda"), torch.enable_grad():
            loss = model(batch)
        match loss.item():
            case 0.0:
                continue
            case _:
                loss.backward()
        optimizer.step()
    except RuntimeError as error:
        if "out of memory" not in str(error):
            raise
        torch.cuda.empty_cache()
    finally:
        optimizer.zero_grad()
else:
    print("done")

# %% main guard
import torch

if __name__ == "__main__":
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        for batch in loader:  # tcmon: train
            optimizer.zero_grad()
            model(batch).backward()
            optimizer.step()

# %% a method with a loop of its own in a nested function
import torch


class Task:
    def launch(self):
        def work(rank):
            while self.running:  # tcmon: train
                self.loss().backward()
                self.optimizer.step()

        self.spawn(work)


# %% a lambda and a comprehension beside
import torch

squares = [n * n for n in range(3)]
rate = lambda step: min(step, 10)
for batch in [b for b in loader if b]:  # tcmon: train
    weights = {k: v.clone() for k, v in model.state_dict().items()}
    (lambda: model(batch).backward())()
    optimizer.step()

# %% a loop in a class body, a loop after a loop on one line
import torch


class Settings:
    for name in ("a", "b"):
        locals()[name] = 1


for _ in range(2): print(_)
for batch in loader: model(batch).backward(); optimizer.step()  # tcmon: train
