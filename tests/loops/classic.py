# %% an example as tutorials have it: train, test, main
import torch
import torch.nn.functional as F


def train(args, model, device, train_loader, optimizer, epoch):
    model.train()
    for batch_idx, (data, target) in enumerate(train_loader):  # tcmon: train
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
        if batch_idx % args.log_interval == 0:
            print(f"{epoch} {batch_idx} {loss.item():.4f}")


def test(model, device, test_loader):
    model.eval()
    test_loss = correct = 0
    with torch.no_grad():
        for data, target in test_loader:  # tcmon: eval
            output = model(data.to(device))
            test_loss += F.nll_loss(output, target, reduction="sum").item()
            correct += (output.argmax(1) == target).sum().item()
    return test_loss, correct


def main():
    model, optimizer, scheduler = build()
    for epoch in range(1, 15):
        train(args, model, "cpu", train_loader, optimizer, epoch)
        test(model, "cpu", test_loader)
        scheduler.step()


if __name__ == "__main__":
    main()

# %% all in the module, with a validation every epoch
import torch

model = torch.nn.Linear(4, 2)
optimizer = torch.optim.Adam(model.parameters())
for name, parameter in model.named_parameters():
    print(name, parameter.shape)
for epoch in range(10):
    for x, y in train_loader:  # tcmon: train
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    total = 0.0
    with torch.no_grad():
        for x, y in val_loader:  # tcmon: eval
            total += criterion(model(x), y).item()
    model.train()
    for key, value in {"loss": total}.items():
        print(key, value)

# %% a language model that draws its own batches, with micro steps
import torch


@torch.no_grad()
def estimate_loss():
    out = {}
    model.eval()
    for split in ["train", "val"]:
        losses = torch.zeros(eval_iters)
        for k in range(eval_iters):  # tcmon: eval
            x, y = get_batch(split)
            _, loss = model(x, y)
            losses[k] = loss.item()
        out[split] = losses.mean()
    model.train()
    return out


x, y = get_batch("train")
while True:  # tcmon: train
    lr = get_lr(iter_num)
    for param_group in optimizer.param_groups:
        param_group["lr"] = lr
    if iter_num % eval_interval == 0:
        print(estimate_loss())
    for micro_step in range(gradient_accumulation_steps):
        with ctx:
            logits, loss = model(x, y)
            loss = loss / gradient_accumulation_steps
        x, y = get_batch("train")
        scaler.scale(loss).backward()
    if grad_clip != 0.0:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    iter_num += 1
    if iter_num > max_iters:
        break

# %% by the number of steps, with next
import torch

batches = iter(train_loader)
step = 0
while step < max_steps:  # tcmon: train
    try:
        batch = next(batches)
    except StopIteration:
        batches = iter(train_loader)
        batch = next(batches)
    loss = model(batch)
    loss.backward()
    opt.step()
    opt.zero_grad()
    step += 1

# %% the whole data in every step
import torch

net = torch.nn.Sequential()
optim = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(500):  # tcmon: train
    optim.zero_grad()
    loss = loss_fn(net(inputs), targets)
    loss.backward()
    optim.step()

# %% one step out of several batches, a flush after the loop
import torch


def train_epoch(loader, model, optimizer, accumulate):
    for i, batch in enumerate(loader):  # tcmon: train
        loss = model(batch) / accumulate
        loss.backward()
        if (i + 1) % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
    optimizer.step()
    optimizer.zero_grad()


# %% a flush in the loop of epochs
import torch

for epoch in range(epochs):
    optimizer.zero_grad()
    for i, batch in enumerate(loader):  # tcmon: train
        loss = model(batch)
        loss.backward()
        if (i + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
    if (i + 1) % 4:
        optimizer.step()
        optimizer.zero_grad()

# %% gradients of all batches for one step an epoch
import torch

for epoch in range(epochs):  # tcmon: train
    optimizer.zero_grad()
    for x, y in loader:
        loss_fn(model(x), y).backward()
    optimizer.step()

# %% an epoch that trains or evaluates by a flag
import torch


def run_epoch(loader, training):
    model.train(training)
    total = 0.0
    for x, y in loader:  # tcmon: train
        with torch.set_grad_enabled(training):
            loss = criterion(model(x), y)
        if training:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        total += loss.item()
    return total


# %% phases of transfer learning
import torch

for epoch in range(25):
    for phase in ["train", "val"]:
        if phase == "train":
            model.train()
        else:
            model.eval()
        running_loss = 0.0
        for inputs, labels in dataloaders[phase]:  # tcmon: train
            optimizer.zero_grad()
            with torch.set_grad_enabled(phase == "train"):
                loss = criterion(model(inputs), labels)
                if phase == "train":
                    loss.backward()
                    optimizer.step()
            running_loss += loss.item()
        if phase == "train":
            scheduler.step()

# %% gradients and nothing that is stepped by name
import torch

for batch in loader:  # tcmon: train
    model(batch).loss.backward()
    hooks_that_update(model)

# %% a cell-by-cell script from a notebook
# coding: utf-8

# In[1]:
import torch
import matplotlib.pyplot as plt

# In[2]:
hist = []
for t in range(300):  # tcmon: train
    y_pred = net(X)
    l = lossfunc(y_pred, Y)
    hist.append(l.item())
    trainer.zero_grad()
    l.backward()
    trainer.step()

# In[3]:
for i, h in enumerate(hist):
    if i % 100 == 0:
        print(i, h)
plt.plot(hist)
