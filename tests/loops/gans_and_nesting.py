# %% two optimizers in a loop
import torch

for epoch in range(n_epochs):
    for i, (imgs, _) in enumerate(dataloader):  # tcmon: train
        optimizer_G.zero_grad()
        g_loss = adversarial_loss(discriminator(generator(z)), valid)
        g_loss.backward()
        optimizer_G.step()
        optimizer_D.zero_grad()
        d_loss = adversarial_loss(discriminator(imgs), valid)
        d_loss.backward()
        optimizer_D.step()

# %% the critic trains n times a step
import torch

for iteration in range(iterations):  # tcmon: train
    for _ in range(n_critic):
        opt_c.zero_grad()
        loss_c = critic(real) - critic(fake)
        loss_c.backward()
        opt_c.step()
        for p in critic.parameters():
            p.data.clamp_(-0.01, 0.01)
    opt_g.zero_grad()
    loss_g = -critic(generator(z)).mean()
    loss_g.backward()
    opt_g.step()

# %% the critic trains n times in a function of its own
import torch


def step(real):
    for _ in range(5):
        loss_c = critic(real)
        loss_c.backward()
        opt_c.step()
    loss_g = generator(noise)
    loss_g.backward()
    opt_g.step()


for real in loader:  # tcmon: train
    step(real)

# %% a gradient penalty, and generator steps now and then
import torch


def gradient_penalty(critic, real, fake):
    gradients = torch.autograd.grad(outputs=critic(mixed), inputs=mixed, create_graph=True)[0]
    return ((gradients.norm(2, dim=1) - 1) ** 2).mean()


for i, real in enumerate(loader):  # tcmon: train
    d_loss = critic(real) + 10 * gradient_penalty(critic, real, fake)
    d_loss.backward()
    optimizer_D.step()
    if i % n_critic == 0:
        g_loss.backward()
        optimizer_G.step()

# %% cycle GAN with methods for halves of a step
import torch


class Model:
    def backward_G(self):
        self.loss_G = self.criterion(self.netG(self.real))
        self.loss_G.backward()

    def backward_D(self):
        self.loss_D = self.criterion(self.netD(self.fake))
        self.loss_D.backward()

    def optimize_parameters(self):
        self.forward()
        self.optimizer_D.zero_grad()
        self.backward_D()
        self.optimizer_D.step()
        self.optimizer_G.zero_grad()
        self.backward_G()
        self.optimizer_G.step()


model = Model()
for epoch in range(epochs):
    for i, data in enumerate(dataset):  # tcmon: train
        model.set_input(data)
        model.optimize_parameters()
    model.update_learning_rate()

# %% MAML: inner steps by gradients of a task, an outer optimizer
import torch

for episode in range(episodes):  # tcmon: train
    meta_loss = 0.0
    for task in sample_tasks():
        fast = dict(model.named_parameters())
        for _ in range(inner_steps):
            grads = torch.autograd.grad(loss_of(fast, task), fast.values(), create_graph=True)
            fast = {n: p - inner_lr * g for (n, p), g in zip(fast.items(), grads)}
        meta_loss = meta_loss + loss_of(fast, task)
    meta_optimizer.zero_grad()
    meta_loss.backward()
    meta_optimizer.step()

# %% MAML with an optimizer inside
import torch

for iteration in range(1000):  # tcmon: train
    meta_opt.zero_grad()
    for task in tasks:
        learner = copy_of(model)
        inner_opt = torch.optim.SGD(learner.parameters(), lr=0.01)
        for k in range(5):
            inner_opt.zero_grad()
            learner(task.support).backward()
            inner_opt.step()
        learner(task.query).backward()
    meta_opt.step()

# %% several optimizers in turn
import torch

for batch in loader:  # tcmon: train
    for opt in optimizers:
        opt.zero_grad()
    loss = model(batch)
    loss.backward()
    for opt in optimizers:
        opt.step()

# %% several optimizers by index, by key, and through a scaler
import torch

for batch in loader:  # tcmon: train
    loss = model(batch)
    loss.backward()
    for i in range(len(optimizers)):
        optimizers[i].step()
    for name in named:
        named[name].step()
    for k, o in more.items():
        scaler.step(o)

# %% an ensemble: every member steps once a batch
import torch

for batch in loader:  # tcmon: train
    for member, opt in zip(members, opts):
        loss = member(batch).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()

# %% several losses, one step
import torch

for batch in loader:  # tcmon: train
    losses = model(batch)
    for loss in losses.values():
        loss.backward(retain_graph=True)
    optimizer.step()

# %% folds, learning rates and epochs around
import torch

for fold in range(5):
    for lr in (0.1, 0.01):
        net = build()
        optimizer = torch.optim.SGD(net.parameters(), lr=lr)
        for epoch in range(10):
            for x, y in loaders[fold]:  # tcmon: train
                loss = criterion(net(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

# %% two phases
import torch


def main():
    for batch in first:  # tcmon: train
        model(batch).backward()
        optimizer.step()
    for group in optimizer.param_groups:
        group["lr"] *= 0.1
    for batch in second:  # tcmon: train
        model(batch).backward()
        optimizer.step()


# %% adversarial training: an attack within the step
import torch

for X, y in train_loader:  # tcmon: train
    delta = torch.zeros_like(X, requires_grad=True)
    for _ in range(attack_iters):
        loss = criterion(model(X + delta), y)
        loss.backward()
        delta.data = (delta + alpha * delta.grad.detach().sign()).clamp(-epsilon, epsilon)
        delta.grad.zero_()
    loss = criterion(model(X + delta), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
