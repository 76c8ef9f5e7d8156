# %% DeepSpeed
import deepspeed

model_engine, optimizer, _, _ = deepspeed.initialize(args=args, model=model)
for epoch in range(args.epochs):
    for i, data in enumerate(trainloader):  # tcmon: train
        loss = criterion(model_engine(data[0]), data[1])
        model_engine.backward(loss)
        model_engine.step()

# %% DeepSpeed, the engine named model
import deepspeed

for step, batch in enumerate(train_dataloader):  # tcmon: train
    outputs = model(**batch, use_cache=False)
    model.backward(outputs.loss)
    model.step()

# %% DeepSpeed's pipeline engine
import deepspeed

for step in range(args.steps):  # tcmon: train
    loss = engine.train_batch()

# %% accelerate
from accelerate import Accelerator
import torch

for epoch in range(starting_epoch, args.num_train_epochs):
    model.train()
    for step, batch in enumerate(active_dataloader):  # tcmon: train
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            progress_bar.update(1)
    model.eval()
    losses = []
    for step, batch in enumerate(eval_dataloader):  # tcmon: eval
        with torch.no_grad():
            outputs = model(**batch)
        losses.append(accelerator.gather_for_metrics(outputs.loss))

# %% Fabric
import lightning as L


def fit(fabric, state, train_dataloader, val_dataloader):
    while state["step_count"] < max_steps:  # tcmon: train
        batch = next(train_iterator)
        is_accumulating = state["iter_num"] % 4 != 0
        with fabric.no_backward_sync(model, enabled=is_accumulating):
            loss = loss_fn(model(batch), batch)
            fabric.backward(loss / 4)
        if not is_accumulating:
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()


@torch.no_grad()
def validate(fabric, model, val_dataloader, max_iters):
    model.eval()
    losses = torch.zeros(max_iters)
    for k, batch in enumerate(val_dataloader):  # tcmon: eval
        if k >= max_iters:
            break
        losses[k] = loss_fn(model(batch), batch)
    model.train()
    return losses.mean()


# %% a Lightning module: the loops are the library's
import lightning as L


class Lit(L.LightningModule):
    def training_step(self, batch, batch_idx):
        opts = self.optimizers()
        loss = self.model(batch)
        for opt in opts:
            opt.zero_grad()
        self.manual_backward(loss)
        for opt in opts:
            opt.step()

    def validation_step(self, batch, batch_idx):
        for name, metric in self.metrics.items():
            self.log(name, metric(self.model(batch), batch))


# %% manual optimization driven by the file's own loop
import lightning as L


class Lit(L.LightningModule):
    def training_step(self, batch):
        opt = self.optimizers()
        opt.zero_grad()
        self.manual_backward(self.model(batch))
        opt.step()


lit = Lit()
for batch in loader:  # tcmon: train
    lit.training_step(batch)

# %% XLA
import torch_xla.core.xla_model as xm


def train_loop_fn(loader, epoch):
    for step, (data, target) in enumerate(loader):  # tcmon: train
        loss = loss_fn(model(data), target)
        loss.backward()
        xm.optimizer_step(optimizer)


# %% apex
from apex import amp

for batch in loader:  # tcmon: train
    loss = model(batch)
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()

# %% distributed by hand
import torch
import torch.distributed as dist


def average_gradients(model):
    for param in model.parameters():
        dist.all_reduce(param.grad.data)
        param.grad.data /= dist.get_world_size()


def run(rank, size):
    for epoch in range(10):
        for data, target in train_set:  # tcmon: train
            optimizer.zero_grad()
            loss = F.nll_loss(model(data), target)
            loss.backward()
            average_gradients(model)
            optimizer.step()


# %% detection as reference scripts have it
import torch


def train_one_epoch(model, optimizer, data_loader, device, epoch, scaler=None):
    metric_logger = MetricLogger()
    for images, targets in metric_logger.log_every(data_loader, 10, "Epoch"):  # tcmon: train
        images = list(image.to(device) for image in images)
        targets = [{k: v.to(device) for k, v in t.items()} for t in targets]
        losses = sum(loss for loss in model(images, targets).values())
        optimizer.zero_grad()
        if scaler is not None:
            scaler.scale(losses).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            losses.backward()
            optimizer.step()
        if lr_scheduler is not None:
            lr_scheduler.step()


@torch.inference_mode()
def evaluate(model, data_loader, device):
    model.eval()
    for images, targets in metric_logger.log_every(data_loader, 100, "Test:"):  # tcmon: eval
        outputs = model(list(img.to(device) for img in images))
        for target, output in zip(targets, outputs):
            results[target["image_id"]] = output
        coco_evaluator.update(results)
    for iou_type in ("bbox", "segm"):
        print(iou_type)


# %% callbacks around a learner's loop
import torch


class Learner:
    def one_batch(self):
        self("begin_batch")
        self.loss = self.loss_func(self.model(self.xb), self.yb)
        if not self.in_train:
            return
        self.loss.backward()
        self.opt.step()
        self.opt.zero_grad()

    def all_batches(self):
        for self.xb, self.yb in self.dl:  # tcmon: train
            self.one_batch()

    def fit(self, epochs):
        for self.epoch in range(epochs):
            self.all_batches()


# %% diffusion
import torch

for epoch in range(epochs):
    for step, batch in enumerate(train_dataloader):  # tcmon: train
        noise = torch.randn_like(batch)
        timesteps = torch.randint(0, 1000, (batch.shape[0],))
        noise_pred = model(noise_scheduler.add_noise(batch, noise, timesteps), timesteps)
        loss = F.mse_loss(noise_pred, noise)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        for t in noise_scheduler.timesteps:
            x = noise_scheduler.step(model(x, t), t, x).prev_sample
