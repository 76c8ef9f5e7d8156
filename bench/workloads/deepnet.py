"""A residual network of many small modules that fits a surface.

2,000 modules and about 12,000 Python calls a step: the step on which following every call costs most.
"""

import argparse

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.linear = nn.Linear(width, width)
        self.activation = nn.GELU()

    def forward(self, x):
        return x + 0.02 * self.activation(self.linear(self.norm(x)))


class DeepNet(nn.Module):
    def __init__(self, modules, width=16):
        super().__init__()
        self.inlet = nn.Linear(2, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(max(1, modules // 4)))
        self.outlet = nn.Linear(width, 1)

    def forward(self, x):
        x = self.inlet(x)
        for block in self.blocks:
            x = block(x)
        return self.outlet(x)


def batch(size, generator):
    x = torch.rand(size, 2, generator=generator) * 2 - 1
    return x, torch.sin(3 * x[:, :1]) * x[:, 1:]


def validate(model):
    model.eval()
    generator = torch.Generator().manual_seed(5)
    total = 0.0
    with torch.no_grad():
        for _ in range(2):
            x, y = batch(128, generator)
            total += nn.functional.mse_loss(model(x), y).item()
    return total / 2


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--modules", type=int, default=2000)
    parser.add_argument("--save", metavar="FILE", help="write the final parameters to FILE")
    args = parser.parse_args()

    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    model = DeepNet(args.modules)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    model.train()
    for _ in range(args.steps):
        x, y = batch(32, generator)
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.5f}, validation loss {validate(model):.5f}")
    if args.save:
        torch.save(model.state_dict(), args.save)


if __name__ == "__main__":
    main()
