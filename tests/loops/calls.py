# %% functions that train on one batch
import torch


def train_step(model, batch):
    loss = compute_loss(model, batch)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def compute_loss(model, batch):
    return model(batch).mean()


def fit(epochs):
    for epoch in range(epochs):
        for batch in loader:  # tcmon: train
            train_step(model, batch)


# %% several calls deep, in a circle
import torch


def outer(batch):
    return middle(batch)


def middle(batch, depth=0):
    if depth > 3:
        return outer(batch)
    loss = model(batch)
    inner(loss)


def inner(loss):
    loss.backward()
    optimizer.step()


for batch in loader:  # tcmon: train
    outer(batch)

# %% methods of a trainer
import torch


class Trainer:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters())

    def _run_batch(self, source, targets):
        self.optimizer.zero_grad()
        loss = self.model(source, targets)
        loss.backward()
        self.optimizer.step()

    def _run_epoch(self, epoch):
        for source, targets in self.train_data:  # tcmon: train
            self._run_batch(source, targets)

    def train(self, max_epochs):
        for epoch in range(max_epochs):
            self._run_epoch(epoch)
            if epoch % self.save_every == 0:
                self._save_checkpoint(epoch)


# %% a template method: the loop is the base's, the step is the derived class's
import torch


class Base:
    def fit(self, loader):
        for batch in loader:  # tcmon: train
            self.step_on(batch)


class Classifier(Base):
    def step_on(self, batch):
        self.opt.zero_grad()
        self.net(batch).backward()
        self.opt.step()


# %% super, in another method of the same name
import torch


class Base:
    def update(self, batch):
        self.net(batch).backward()
        self.opt.step()


class Logged(Base):
    def update(self, batch):
        super().update(batch)
        self.count += 1

    def run(self, batches):
        for batch in batches:  # tcmon: train
            self.update(batch)


# %% a method of an object of a class of this file
import torch


class Agent:
    def learn(self, experiences):
        loss = self.net(experiences).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def main():
    agent = Agent()
    for i in range(1000):  # tcmon: train
        agent.learn(memory.sample())


# %% closures, partial, decorated functions
import functools

import torch


def timed(function):
    @functools.wraps(function)
    def inner(*args):
        return function(*args)

    return inner


@timed
def train_on(model, batch):
    model(batch).backward()
    optimizer.step()


def make_step(model):
    def step_once(batch):
        train_on(model, batch)

    return step_once


once = make_step(model)
for batch in loader:  # tcmon: train
    once(batch)

on_model = functools.partial(train_on, model)
for batch in loader:  # tcmon: train
    on_model(batch)

# %% a compiled function
import torch


@torch.compile
def forward_backward(batch):
    loss = model(batch)
    loss.backward()
    return loss


fast = torch.compile(forward_backward)
for batch in loader:  # tcmon: train
    fast(batch)
    adamw.step()

# %% an epoch loop around a function with its own training loop
import torch


def train_epoch(loader):
    for batch in loader:  # tcmon: train
        model(batch).backward()
        optimizer.step()


for epoch in range(10):
    train_epoch(loader)
    scheduler.step()

# %% accumulation in a function, the step at its caller's
import torch


def accumulate(batches):
    for batch in batches:
        model(batch).backward()


for batches in loader:  # tcmon: train
    optimizer.zero_grad()
    accumulate(batches)
    optimizer.step()

# %% a closure for LBFGS, defined in the loop
import torch

optimizer = torch.optim.LBFGS([image])
for i in range(steps):  # tcmon: train

    def closure():
        optimizer.zero_grad()
        loss = style_loss(image)
        loss.backward()
        return loss

    optimizer.step(closure)

# %% style transfer with a counter in a list
import torch


def run_style_transfer(input_img, num_steps=300):
    optimizer = torch.optim.LBFGS([input_img])
    run = [0]
    while run[0] <= num_steps:  # tcmon: train

        def closure():
            with torch.no_grad():
                input_img.clamp_(0, 1)
            optimizer.zero_grad()
            model(input_img)
            score = 0
            for sl in style_losses:
                score += sl.loss
            score.backward()
            run[0] += 1
            return score

        optimizer.step(closure)
    return input_img


# %% a callable that does both
import torch


def train_one_epoch(model, loader, optimizer, loss_scaler, max_norm):
    model.train()
    for samples, targets in metric_logger.log_every(loader, 10, header):  # tcmon: train
        loss = criterion(model(samples), targets)
        optimizer.zero_grad()
        loss_scaler(loss, optimizer, clip_grad=max_norm, parameters=model.parameters())
        ema.update(model)


# %% a function in the loop that does it in one of two ways
import torch


def train_one_epoch(model, loader, optimizer, loss_scaler=None):
    for batch_idx, (input, target) in enumerate(loader):  # tcmon: train
        def _forward():
            return loss_fn(model(input), target)

        def _backward(loss):
            if loss_scaler is not None:
                loss_scaler(loss, optimizer, need_update=True)
            else:
                loss.backward()
                optimizer.step()

        _backward(_forward())


# %% methods as aliases
import torch

optimizer = torch.optim.SGD(params, 0.1)
advance = optimizer.step
for batch in loader:  # tcmon: train
    model(batch).backward()
    advance()

# %% a class of another name, told by what made it
import torch

bert_thing = torch.optim.AdamW(model.parameters())
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(bert_thing)
for i in range(10):  # tcmon: train
    magic(i)
    bert_thing.step()
for i in range(10):
    plateau.step(i)

# %% generic functions and classes
import torch


class Learner[T]:
    def once(self, batch: T) -> None:
        self.net(batch).backward()
        self.optimizer.step()

    def all(self, batches: list[T]) -> None:
        for batch in batches:  # tcmon: train
            self.once(batch)


# %% functions in a dictionary and in a tuple
import torch


def step_d(batch):
    d_loss(batch).backward()
    optimizer_d.step()


def step_g(batch):
    g_loss(batch).backward()
    optimizer_g.step()


steps = {"d": step_d, "g": step_g}
for i, batch in enumerate(loader):  # tcmon: train
    steps["d" if i % 2 else "g"](batch)

# %% an optimizer in a wrapper of another method, an epoch loop around
import torch


class ScheduledOptim:
    def step_and_update_lr(self):
        self._update_learning_rate()
        self._optimizer.step()


def train_epoch(model, training_data, optimizer):
    for batch in tqdm(training_data, leave=False):  # tcmon: train
        optimizer.zero_grad()
        loss = model(batch)
        loss.backward()
        optimizer.step_and_update_lr()


def train(model):
    for epoch_i in range(10):
        train_epoch(model, training_data, optimizer)
        log.write(str(epoch_i))


# %% a trainer from elsewhere that is handed the optimizer, micro batches in a function
import torch


def main():
    opt = torch.optim.AdamW(mp_trainer.master_params)

    def forward_backward_log(loader):
        for i, part in enumerate(split_microbatches(next(loader))):
            loss = model(part)
            if i == 0:
                mp_trainer.zero_grad()
            mp_trainer.backward(loss)

    for step in range(iterations):  # tcmon: train
        forward_backward_log(data)
        mp_trainer.optimize(opt)
        if val_data is not None:
            with torch.no_grad():
                forward_backward_log(val_data)


# %% no loop around: the step is its caller's
import torch


def train_step(samples):
    for sample in samples:
        loss = model(sample)
        optimizer.backward(loss)


# %% a function that is handed to the one with the loop
import torch


def run(batches, once, *, after=None):
    for batch in batches:  # tcmon: train
        once(batch)
        if after:
            after(batch)


def learn(batch):
    model(batch).backward()
    optimizer.step()


class Runner:
    def go(self, step_fn):
        while True:  # tcmon: train
            step_fn()

    def start(self):
        self.go(lambda: learn(next(data)))


run(loader, learn, after=print)
run(loader, once=learn)
