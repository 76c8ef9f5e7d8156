"""Trains a small character-level transformer on the source text of Python's standard library.

Four epochs of 50 steps, about 20 s on one core. Run by `tcmon demo`; an ordinary program otherwise:

    python train.py --epochs 4 --steps-per-epoch 50
"""

import argparse
import math
import sys
import sysconfig
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, RandomSampler, Subset

VOCABULARY = 128  # ASCII
CONTEXT = 64
TEXT_LIMIT = 3_000_000
VALIDATION_BATCHES = 10


def library_text(limit: int = TEXT_LIMIT) -> bytes:
    """The standard library's own modules, joined in the order of their names, as ASCII."""
    parts: list[bytes] = []
    size = 0
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        parts.append(text.encode("ascii", errors="replace"))
        size += len(parts[-1])
        if size >= limit:
            break
    return b"\n".join(parts)[:limit]


class Windows(Dataset[tuple[Tensor, Tensor]]):
    """Every window of CONTEXT characters of a text, with the characters that come next."""

    def __init__(self, text: bytes) -> None:
        self.tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8)

    def __len__(self) -> int:
        return len(self.tokens) - CONTEXT

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        window = self.tokens[index : index + CONTEXT + 1].long()
        return window[:-1], window[1:]


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = y.transpose(1, 2).reshape(batch, length, width)
        return self.out(y)


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class LanguageModel(nn.Module):
    def __init__(self, width: int = 128, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, width)
        self.position = nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.token(tokens) + self.position(positions)
        return self.head(self.norm(self.blocks(x)))


def train_epoch(
    model: nn.Module,
    loader: DataLoader[tuple[Tensor, Tensor]],
    optimizer: torch.optim.Optimizer,
    scheduler: torch.optim.lr_scheduler.LRScheduler,
    device: torch.device,
) -> float:
    model.train()
    total = 0.0
    for inputs, targets in loader:
        inputs, targets = inputs.to(device), targets.to(device)
        logits = model(inputs)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
        scheduler.step()
        total += loss.item()
    return total / len(loader)


@torch.no_grad()
def evaluate(model: nn.Module, loader: DataLoader[tuple[Tensor, Tensor]], device: torch.device) -> float:
    model.eval()
    total = 0.0
    for inputs, targets in loader:
        logits = model(inputs.to(device))
        total += F.cross_entropy(logits.flatten(0, 1), targets.to(device).flatten()).item()
    return total / len(loader)


@torch.no_grad()
def generate(model: nn.Module, prompt: str, length: int, device: torch.device) -> str:
    model.eval()
    tokens = torch.tensor([list(prompt.encode("ascii"))], device=device)
    for _ in range(length):
        logits = model(tokens[:, -CONTEXT:])[:, -1] / 0.8
        following = torch.multinomial(F.softmax(logits, dim=-1), num_samples=1)
        tokens = torch.cat([tokens, following], dim=1)
    return bytes(tokens[0].tolist()).decode("ascii")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a character-level language model.")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--steps-per-epoch", type=int, default=50)
    parser.add_argument("--batch-size", type=int, default=24)
    parser.add_argument("--learning-rate", type=float, default=1e-2)
    parser.add_argument("--workers", type=int, default=0, help="processes that load data (0: none)")
    # More threads are faster only where no other process wants their cores.
    parser.add_argument("--threads", type=int, default=1, help="of torch on the CPU")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seed", type=int, default=1337)
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    device = torch.device(args.device)

    text = library_text()
    if len(text) < 20 * CONTEXT:
        sys.exit("Nothing to train on: this Python comes without the source of its standard library.")
    split = len(text) * 9 // 10
    train_set, validation_set = Windows(text[:split]), Windows(text[split:])
    sampler = RandomSampler(train_set, replacement=True, num_samples=args.steps_per_epoch * args.batch_size)
    train_loader = DataLoader(train_set, batch_size=args.batch_size, sampler=sampler, num_workers=args.workers)
    wanted = VALIDATION_BATCHES * args.batch_size
    validation_loader = DataLoader(
        Subset(validation_set, [i * len(validation_set) // wanted for i in range(wanted)]),
        batch_size=args.batch_size,
        num_workers=args.workers,
    )

    model = LanguageModel().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate, weight_decay=0.1)
    total_steps = args.epochs * args.steps_per_epoch
    warmup_steps = max(1, total_steps // 20)

    def learning_rate_factor(step: int) -> float:
        if step < warmup_steps:
            return (step + 1) / warmup_steps
        progress = (step - warmup_steps) / max(1, total_steps - warmup_steps)
        return 0.1 + 0.45 * (1 + math.cos(math.pi * progress))

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, learning_rate_factor)

    parameters = sum(p.numel() for p in model.parameters())
    print(f"{parameters:,} parameters, {len(text):,} characters of text, on {device}")
    for epoch in range(1, args.epochs + 1):
        train_loss = train_epoch(model, train_loader, optimizer, scheduler, device)
        validation_loss = evaluate(model, validation_loader, device)
        print(f"epoch {epoch}/{args.epochs}: loss {train_loss:.3f}, validation loss {validation_loss:.3f}")

    print("\nA sample:\n" + generate(model, "def ", 200, device))


if __name__ == "__main__":
    main()
