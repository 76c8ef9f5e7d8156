# %% one batch at a time, through a function
import torch


def validate_step(batch):
    with torch.no_grad():
        return metric(model(batch), batch)


def run_validation(loader):
    for batch in loader:  # tcmon: eval
        validate_step(batch)


# %% a decorated function with a wrapper around the loader
import torch
from tqdm import tqdm


@torch.no_grad()
def evaluate(model, loader):
    scores = []
    for batch in tqdm(loader, desc="eval"):  # tcmon: eval
        scores.append(model(batch))
    for score in scores:
        print(score)


# %% several loaders
import torch


def test_all(loaders):
    model.eval()
    for name, test_loader in loaders.items():
        correct = 0
        for x, y in test_loader:  # tcmon: eval
            correct += (model(x).argmax(1) == y).sum()
        print(name, correct)


# %% within a training step, every so often
import torch

for step, batch in enumerate(train_loader):  # tcmon: train
    model(batch).backward()
    optimizer.step()
    if step % 100 == 0:
        model.eval()
        with torch.no_grad():
            for x, y in eval_loader:  # tcmon: eval
                total += criterion(model(x), y)
        model.train()

# %% a while over an iterator
import torch


def evaluate(loader):
    it = iter(loader)
    with torch.inference_mode():
        while True:  # tcmon: eval
            batch = next(it, None)
            if batch is None:
                break
            meter.update(net(batch))


# %% text in pieces of equal length
import torch


def evaluate(data_source):
    model.eval()
    total_loss = 0.0
    with torch.no_grad():
        for i in range(0, data_source.size(0) - 1, bptt):  # tcmon: eval
            data, targets = get_batch(data_source, i)
            output, hidden = model(data, hidden)
            total_loss += criterion(output, targets).item()


# %% a method
import torch


class Evaluator:
    def run(self):
        self.model.eval()
        with torch.no_grad():
            for batch in self.data_loader:  # tcmon: eval
                self.metrics.update(self.model(batch))

    def report(self):
        for name, value in self.metrics.items():
            print(name, value)


# %% adversarial examples are made with gradients and train nothing
import torch


def test(model, test_loader, epsilon):
    correct = 0
    model.eval()
    for data, target in test_loader:  # tcmon: eval
        data.requires_grad = True
        output = model(data)
        loss = F.nll_loss(output, target)
        model.zero_grad()
        loss.backward()
        perturbed = data + epsilon * data.grad.data.sign()
        correct += (model(perturbed).argmax(1) == target).sum()
    return correct


# %% nested: time steps within a batch
import torch


@torch.no_grad()
def validate(model, val_loader):
    for sequence in val_loader:  # tcmon: eval
        hidden = None
        for t in range(sequence.size(0)):
            out, hidden = model(sequence[t], hidden)

# %% generation, sampling, teachers and statistics are no evaluation
import torch


@torch.no_grad()
def generate(model, idx, max_new_tokens):
    for _ in range(max_new_tokens):
        logits = model(idx[:, -block_size:])
        idx = torch.cat((idx, torch.multinomial(logits.softmax(-1), 1)), dim=1)
    return idx


def evaluate(encoder, decoder, sentence, max_length):
    with torch.no_grad():
        for ei in range(input_length):
            output, hidden = encoder(sentence[ei], hidden)
        for di in range(max_length):
            output, hidden = decoder(token, hidden)


@torch.no_grad()
def sample(model, n):
    for i in range(n):
        images.append(model(torch.randn(1, 100)))


def extract_features(model, loader):
    model.eval()
    features = []
    with torch.no_grad():
        for x, _ in loader:
            features.append(model(x))
    return torch.cat(features)


mean = 0.0
for x, _ in train_loader:
    mean += x.mean()

for batch in train_loader:  # tcmon: train
    with torch.no_grad():
        for teacher in teachers:
            logits = logits + teacher(batch)
    loss = distil(model(batch), logits)
    loss.backward()
    optimizer.step()

# %% helper loops are no evaluation
import torch


def evaluate_and_print(results, test_names):
    for name in test_names:
        print(name, results[name])
    for key, value in results.items():
        log(key, value)
    sizes = []
    for batch in val_loader:
        sizes.append(len(batch))
    return [model(x) for x in extra]

# %% a model by another name is known by its mode
import torch


def validate(args, gen, mel, val_loader):
    gen.eval()
    with torch.no_grad():
        for i, batch in enumerate(val_loader):  # tcmon: eval
            with torch.autocast("cuda"):
                y = gen(batch)
            difference = F.l1_loss(mel(y), batch)
    gen.train()


# %% attacks are part of an evaluation
import torch


def attack_pgd(model, X, y):
    delta = torch.zeros_like(X, requires_grad=True)
    for _ in range(10):
        loss = F.cross_entropy(model(X + delta), y)
        loss.backward()
        grad = delta.grad.detach()
        delta.data = clamp(delta + 0.1 * torch.sign(grad), -0.3, 0.3)
    return delta


def main():
    model.eval()
    for i, (X, y) in enumerate(test_loader):  # tcmon: eval
        delta = attack_pgd(model, X, y)
        with torch.no_grad():
            correct += (model(X + delta).argmax(1) == y).sum()


# %% images and features for people to look at
import torch


def log_validation(pipeline, args):
    for i, prompt in enumerate(args.validation_prompts):
        images.append(pipeline(prompt).images[0])
    for image in args.validation_images:
        images.append(vae(image))


model.eval()
with torch.no_grad():
    for k, video in enumerate(loader):
        features = model(video)
        save(features)

# %% numbers of steps that have test in their names
import torch


def finetune(self, x, y):
    for k in range(1, self.update_step_test):
        loss = F.cross_entropy(self.net(x, fast_weights), y)
        grad = torch.autograd.grad(loss, fast_weights)
        fast_weights = list(map(lambda p: p[1] - self.lr * p[0], zip(grad, fast_weights)))


# %% episodes of a policy
import torch


def evaluate(env, actor, eval_episodes):
    actor.eval()
    while len(returns) < eval_episodes:  # tcmon: eval
        with torch.no_grad():
            actions = actor(obs)
        obs, _, _, _, infos = env.step(actions)
