# %% parameters' data
import torch

for batch in loader:  # tcmon: train
    loss = model(batch)
    model.zero_grad()
    loss.backward()
    for p in model.parameters():
        p.data.add_(p.grad, alpha=-lr)

# %% a subtraction in place under no_grad
import torch

for epoch in range(epochs):
    for i in range((n - 1) // bs + 1):  # tcmon: train
        loss = loss_func(model(xb), yb)
        loss.backward()
        with torch.no_grad():
            weights -= weights.grad * lr
            bias -= bias.grad * lr
            weights.grad.zero_()
            bias.grad.zero_()

# %% an assignment to data
import torch

for t in range(2000):  # tcmon: train
    loss = (a + b * x - y).pow(2).sum()
    loss.backward()
    a.data = a.data - learning_rate * a.grad
    b.data = b.data - learning_rate * b.grad
    a.grad = b.grad = None

# %% a function for the update
import torch


def sgd(params, lr, batch_size):
    with torch.no_grad():
        for param in params:
            param -= lr * param.grad / batch_size
            param.grad.zero_()


for epoch in range(num_epochs):
    for X, y in data_iter(batch_size, features, labels):  # tcmon: train
        l = loss(net(X, w, b), y)
        l.sum().backward()
        sgd([w, b], lr, batch_size)

# %% gradients asked for
import torch

for step in range(steps):  # tcmon: train
    loss = loss_of(params)
    grads = torch.autograd.grad(loss, params)
    with torch.no_grad():
        for p, g in zip(params, grads):
            p -= lr * g

# %% an optimizer of the program's own
import torch


class Momentum:
    def __init__(self, params):
        self.params = list(params)

    def zero_grad(self):
        for p in self.params:
            p.grad = None

    def step(self):
        for p, v in zip(self.params, self.velocities):
            v.mul_(0.9).add_(p.grad)
            p.data.add_(v, alpha=-0.1)


rule = Momentum(model.parameters())
for batch in loader:  # tcmon: train
    rule.zero_grad()
    model(batch).backward()
    rule.step()
