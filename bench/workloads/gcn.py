"""Node classification with a graph convolutional network, an epoch one step: the whole graph is the batch.

About 3 ms and 220 Python calls a step on one core.
"""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


def make_graph(nodes=600, classes=4, features=32, seed=3):
    """A stochastic block model: neighbours mostly share a class, features are noisy prototypes of it."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, classes, (nodes,), generator=generator)
    same = labels[:, None] == labels[None, :]
    chances = torch.where(same, 0.03, 0.005)
    upper = torch.triu(torch.rand(nodes, nodes, generator=generator) < chances, diagonal=1).float()
    adjacency = upper + upper.T + torch.eye(nodes)
    scale = adjacency.sum(1).rsqrt()
    adjacency = scale[:, None] * adjacency * scale[None, :]
    prototypes = torch.randn(classes, features, generator=generator)
    x = prototypes[labels] + 3.0 * torch.randn(nodes, features, generator=generator)
    order = torch.randperm(nodes, generator=generator)
    return x, adjacency, labels, order[:80], order[80:200], order[200:]


class GraphConvolution(nn.Module):
    def __init__(self, features_in, features_out):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(features_in, features_out))
        self.bias = nn.Parameter(torch.zeros(features_out))
        nn.init.xavier_uniform_(self.weight)

    def forward(self, x, adjacency):
        return adjacency @ (x @ self.weight) + self.bias


class GCN(nn.Module):
    def __init__(self, features, hidden, classes):
        super().__init__()
        self.gc1 = GraphConvolution(features, hidden)
        self.gc2 = GraphConvolution(hidden, classes)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x, adjacency):
        x = self.dropout(F.relu(self.gc1(x, adjacency)))
        return F.log_softmax(self.gc2(x, adjacency), dim=1)


def accuracy(output, labels):
    return (output.argmax(1) == labels).float().mean().item()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--save", metavar="FILE", help="write the final parameters to FILE")
    args = parser.parse_args()

    torch.manual_seed(4)
    x, adjacency, labels, train_nodes, valid_nodes, test_nodes = make_graph()
    model = GCN(x.shape[1], hidden=16, classes=4)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)

    def train(epoch):
        model.train()
        optimizer.zero_grad()
        output = model(x, adjacency)
        loss = F.nll_loss(output[train_nodes], labels[train_nodes])
        loss.backward()
        optimizer.step()

        model.eval()
        with torch.no_grad():
            output = model(x, adjacency)
        if epoch % 20 == 0:
            valid = accuracy(output[valid_nodes], labels[valid_nodes])
            print(f"epoch {epoch}: loss {loss.item():.4f}, validation accuracy {valid:.3f}")

    def test():
        model.eval()
        with torch.no_grad():
            output = model(x, adjacency)
        print(f"test accuracy {accuracy(output[test_nodes], labels[test_nodes]):.3f}")

    for epoch in range(1, args.epochs + 1):
        train(epoch)
    test()
    if args.save:
        torch.save(model.state_dict(), args.save)


if __name__ == "__main__":
    main()
