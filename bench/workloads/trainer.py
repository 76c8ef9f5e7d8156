"""A tiny GPT-2 with random weights trained by Hugging Face's Trainer on the standard library's text; no network."""

import argparse
import sysconfig
import tempfile
from pathlib import Path

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

CONTEXT = 32


class Windows(Dataset):
    """Pieces of a text, byte by byte."""

    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data) // CONTEXT

    def __getitem__(self, index):
        tokens = self.data[index * CONTEXT : (index + 1) * CONTEXT]
        return {"input_ids": tokens, "labels": tokens}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--save", metavar="FILE", help="write the final parameters to FILE")
    args = parser.parse_args()

    torch.manual_seed(0)
    text = Path(sysconfig.get_paths()["stdlib"], "argparse.py").read_bytes()
    data = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    config = GPT2Config(
        vocab_size=256,
        n_positions=CONTEXT,
        n_embd=32,
        n_layer=2,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = GPT2LMHeadModel(config)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=args.steps,
            per_device_train_batch_size=4,
            learning_rate=1e-3,
            eval_strategy="steps",
            eval_steps=max(1, args.steps // 2),
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            seed=0,
        )
        cut = len(data) * 9 // 10
        trainer = Trainer(
            model=model,
            args=arguments,
            train_dataset=Windows(data[:cut]),
            eval_dataset=Windows(data[cut : cut + 64 * CONTEXT]),
        )
        trainer.train()
        print(f"evaluation loss {trainer.evaluate()['eval_loss']:.4f}")
    if args.save:
        torch.save(model.state_dict(), args.save)


if __name__ == "__main__":
    main()
