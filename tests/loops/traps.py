# %% schedulers, profilers and bars step, nothing trains
import torch

for epoch in range(100):
    scheduler.step()
    lrs.append(scheduler.get_last_lr())
for i in range(10):
    run(i)
    prof.step()
for i in range(10):
    pbar.step()
    warmup.step()
for text in texts:
    tokenizer.step(text)

# %% walks over optimizers and parameters
import torch

for opt in optimizers:
    opt.zero_grad()
for opt in optimizers:
    opt.step()
for group in optimizer.param_groups:
    group["lr"] = 0.1
for p in model.parameters():
    p.requires_grad = False
    if p.grad is not None:
        p.grad.zero_()
for p in model.parameters():
    p.data.sub_(0.1 * p.grad)

# %% a solver of equations
import numpy as np
import torch

for t in range(1000):
    solver.step()
    u = integrator.step(u, dt)
    physics_engine.step()
    x.step()

# %% a generation server
from vllm import LLMEngine
import torch

while engine.has_unfinished_requests():
    for output in engine.step():
        print(output)

# %% JAX
import jax
import optax

for batch in loader:
    grads = jax.grad(loss_fn)(params, batch)
    updates, opt_state = optimizer.update(grads, opt_state)
    params = optax.apply_updates(params, updates)
for batch in loader:
    params = train_step(params, batch, optimizer)

# %% MXNet looks the same
import mxnet as mx
from mxnet import autograd, gluon

for data, label in train_data:
    with autograd.record():
        loss = loss_fn(net(data), label)
    loss.backward()
    trainer.step(batch_size)

# %% an attack on a model's input
import torch


def pgd_attack(model, images, labels):
    adv = images.clone()
    for _ in range(steps):
        adv.requires_grad_()
        cost = loss(model(adv), labels)
        grad = torch.autograd.grad(cost, adv)[0]
        adv = adv.detach() + alpha * grad.sign()
    return adv


def attack(model, x, y):
    delta = torch.zeros_like(x, requires_grad=True)
    for _ in range(40):
        F.cross_entropy(model(x + delta), y).backward()
        delta.data = (delta + alpha * delta.grad.sign()).clamp(-eps, eps)
        delta.grad.zero_()


# %% importance of weights
import torch


def fisher(model, loader):
    for x, y in loader:
        model.zero_grad()
        F.nll_loss(model(x), y).backward()
        for name, p in model.named_parameters():
            information[name] += p.grad.data**2


# %% saliency maps
import torch

for image in images:
    image.requires_grad_()
    score = model(image).max()
    score.backward()
    maps.append(image.grad.abs())

# %% robots go back too
import robotics

for move in moves:
    if move < 0:
        robot.backward(move)
    motor.step()

# %% training elsewhere, a trainer called once an epoch
import torch

from engine import evaluate, train_one_epoch

for epoch in range(args.start_epoch, args.epochs):
    train_one_epoch(model, criterion, data_loader_train, optimizer, device, epoch)
    lr_scheduler.step()
    save_checkpoint(model, optimizer, loss)
    stats = evaluate(model, criterion, data_loader_val, device)

# %% data and setup
import torch

for file in files:
    for line in open(file):
        vocabulary.update(line.split())
for module in model.modules():
    if isinstance(module, torch.nn.Linear):
        torch.nn.init.normal_(module.weight)
while not ready():
    sleep(1)
for i, layer in enumerate(model.layers):
    x = layer(x)

# %% memory is reserved by a backward that nothing comes of
import torch


def main():
    for n_frames in range(a, b, 8):
        loss = ctc(model(torch.randn(4, n_frames)), text)
        loss.backward()
        model.zero_grad()
    for batch in train_loader:  # tcmon: train
        loss = ctc(model(batch), text)
        loss.backward()
        if accumulated == 4:
            optimizer.step()


# %% speed is measured
import torch


def profile(ops, n):
    for m in ops:
        for _ in range(n):
            y = m(x)
            y.sum().backward()


def measure(fn):
    for _ in range(100):
        fn()


measure(lambda: model(x).sum().backward())

# %% sampling with guidance, restoration by gradients of an image
import torch


@torch.no_grad()
def __call__(self, prompt):
    for i, t in enumerate(self.scheduler.timesteps):
        noise_pred = self.unet(latents, t)
        latents = self.scheduler.step(noise_pred, t, latents).prev_sample


def langevin(energy, x):
    for _ in range(60):
        x.requires_grad_()
        grad = torch.autograd.grad(energy(x).sum(), x)[0]
        x = x - 10 * grad + noise()


# %% tests of a library
import torch


def test_gradients():
    for shape in shapes:
        layer(torch.randn(shape)).sum().backward()
        assert layer.weight.grad is not None


def test_outputs(self):
    for height, width in self.sizes:
        output = self.model(inputs(height, width))
        assert output.shape == (height, width)
