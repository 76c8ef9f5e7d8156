"""Two processes on one machine train a small network with DistributedDataParallel over gloo, started by themselves."""

import argparse
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def evaluate(model, inputs, targets):
    model.eval()
    total = 0.0
    with torch.no_grad():
        for x, y in zip(inputs.split(128), targets.split(128), strict=True):
            total += nn.functional.mse_loss(model(x), y).item()
    return total / 2


def work(rank, world, meeting, args):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
    torch.manual_seed(0)
    inputs = torch.rand(16 * world * args.steps + 256, 8)
    targets = torch.sin(inputs.sum(1, keepdim=True))
    train_set = TensorDataset(inputs[:-256], targets[:-256])
    sampler = DistributedSampler(train_set, world, rank, seed=0)
    loader = DataLoader(train_set, batch_size=16, sampler=sampler)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
        if rank == 0:
            found = evaluate(model.module, inputs[-256:], targets[-256:])
            print(f"epoch {epoch + 1}: validation loss {found:.5f}", flush=True)
    if rank == 0 and args.save:
        torch.save(model.module.state_dict(), args.save)
    dist.barrier()
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--steps", type=int, default=100, help="steps of an epoch")
    parser.add_argument("--save", metavar="FILE", help="write the final parameters to FILE")
    args = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(work, (2, Path(folder, "meeting"), args), nprocs=2)


if __name__ == "__main__":
    main()
