"""Library trainers: the training loop stands in the library's code, and steps are what the library says they are."""

import json
from pathlib import Path

import pytest
from conftest import Run

DATA = """
import torch
torch.manual_seed(0)
from torch.utils.data import DataLoader, TensorDataset
pairs = TensorDataset(torch.randn(40, 4), torch.randn(40, 1))
"""

TRANSFORMERS = """
import sys, torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

class Text(torch.utils.data.Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, i):
        tokens = torch.randint(0, 64, (16,), generator=torch.Generator().manual_seed(i))
        return {"input_ids": tokens, "labels": tokens}

config = GPT2Config(vocab_size=64, n_positions=32, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
arguments = TrainingArguments(
    output_dir="out-of-trainer", per_device_train_batch_size=4, num_train_epochs=3, use_cpu=True, report_to=[],
    gradient_accumulation_steps=int(sys.argv[1]), eval_strategy="epoch", save_strategy="no", disable_tqdm=True,
)
trainer = Trainer(model=GPT2LMHeadModel(config), args=arguments, train_dataset=Text(), eval_dataset=Text())
trainer.train()
print("steps", trainer.state.global_step, 15)
"""

ACCELERATE = (
    DATA
    + """
from accelerate import Accelerator
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = torch.nn.Linear(4, 1)
prepared = accelerator.prepare(model, torch.optim.AdamW(model.parameters()), DataLoader(pairs, batch_size=4))
model, optimizer, loader = prepared
count = 0
for epoch in range(2):
    for x, y in loader:
        count += 1
        with accelerator.accumulate(model):
            accelerator.backward(((model(x) - y) ** 2).mean())
            optimizer.step()
            optimizer.zero_grad()
print("steps", count, 0)
"""
)

LIGHTNING = (
    DATA
    + """
import sys
import lightning as L

validated = 0

class Module(L.LightningModule):
    def __init__(self, manual):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.automatic_optimization = not manual

    def training_step(self, batch, index):
        x, y = batch
        loss = ((self.layer(x) - y) ** 2).mean()
        if not self.automatic_optimization:
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        return loss

    def validation_step(self, batch, index):
        global validated
        validated += 1
        x, y = batch
        self.log("validation", ((self.layer(x) - y) ** 2).mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

trainer = L.Trainer(
    max_epochs=3, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False,
)
module = Module(sys.argv[1] == "manual")
trainer.fit(module, DataLoader(pairs, batch_size=4), DataLoader(pairs, batch_size=5))
trainer.validate(module, DataLoader(pairs, batch_size=5), verbose=False)
print("steps", trainer.global_step, validated)
"""
)

CASES = {
    "transformers": ("transformers", TRANSFORMERS, "1", "transformers/trainer.py"),
    "transformers, gradients accumulated": ("transformers", TRANSFORMERS, "4", "transformers/trainer.py"),
    "accelerate, gradients accumulated": ("accelerate", ACCELERATE, "", "train.py"),
    "lightning": ("lightning", LIGHTNING, "automatic", "lightning/pytorch/loops/training_epoch_loop.py"),
    "lightning, stepped by hand": ("lightning", LIGHTNING, "manual", "lightning/pytorch/loops/training_epoch_loop.py"),
}


@pytest.mark.parametrize("name", CASES)
def test_steps_are_the_librarys(name: str, run_tcmon: Run, tmp_path: Path) -> None:
    library, program, argument, file = CASES[name]
    pytest.importorskip(library)
    (tmp_path / "train.py").write_text(program)

    options = ["--quiet", "--out", "out", "--interval", "3", "--warmup", "0"]
    done = run_tcmon(["run", *options, "train.py", argument], tmp_path, HF_HUB_OFFLINE="1")

    [_, training, evaluation] = done.stdout.splitlines()[-1].split()
    report = json.loads(run_tcmon(["report", "--json", "out"], tmp_path).stdout)
    assert report["steps"]["train"]["count"] == int(training)
    assert report["steps"]["eval"]["count"] == int(evaluation)
    [loop] = [loop for loop in report["loops"] if loop["role"] == "train" and loop["steps"]]
    assert loop["file"].endswith(file)
    assert report["steps"]["train"]["sampled"] > 0
