"""Training that waits for its data: two worker processes decode each example slowly, the model is tiny."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class SlowSignals(Dataset):
    """Noisy sine waves of two frequencies; each takes `seconds` to decode, as a file on a slow disk would."""

    def __init__(self, count, seed, seconds):
        self.count = count
        self.seed = seed
        self.seconds = seconds

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        time.sleep(self.seconds)
        generator = torch.Generator().manual_seed(self.seed + index)
        label = index % 2
        time_axis = torch.linspace(0, 1, 64)
        wave = torch.sin(2 * torch.pi * (3 + 2 * label) * time_axis)
        return wave + 0.3 * torch.randn(64, generator=generator), label


def evaluate(model, loader):
    model.eval()
    correct = 0
    with torch.no_grad():
        for signals, labels in loader:
            correct += (model(signals).argmax(1) == labels).sum().item()
    return correct / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--steps", type=int, default=50, help="steps of an epoch")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--decode-ms", type=float, default=1.0, help="time to decode one example")
    parser.add_argument("--save", metavar="FILE", help="write the final parameters to FILE")
    args = parser.parse_args()

    torch.manual_seed(0)
    seconds = args.decode_ms / 1e3
    train_set = SlowSignals(16 * args.steps, 0, seconds)
    train_loader = DataLoader(train_set, batch_size=16, shuffle=True, num_workers=args.workers)
    test_loader = DataLoader(SlowSignals(64, 100_000, 0.0), batch_size=32)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        model.train()
        for signals, labels in train_loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(signals), labels)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch + 1}: loss {loss.item():.4f}, test accuracy {evaluate(model, test_loader):.3f}")
    if args.save:
        torch.save(model.state_dict(), args.save)


if __name__ == "__main__":
    main()
