"""What calls and assignments say about training and evaluation, judged by names and by what is known of things."""

from __future__ import annotations

import re
from enum import StrEnum
from functools import cache

from tcmon.analysis.expressions import (
    Attribute,
    Call,
    Element,
    Expr,
    Item,
    Name,
    Operation,
    is_dotted,
    names_in,
    path,
    within,
)
from tcmon.analysis.reading import Store


class Sign(StrEnum):
    """What a place in the code is a sign of."""

    STEP = "step"
    """An optimizer is stepped, or parameters are updated by hand."""
    MAYBE_STEP = "maybe step"
    """`x.step()` where the name of `x` tells nothing; it counts beside a `backward`."""
    BACKWARD = "backward"
    """Gradients are computed."""
    CLEAR = "clear"
    """Gradients are cleared."""


class Thing(StrEnum):
    """What an object is known to be, from its type or from the call that made it."""

    STEPPER = "optimizer"
    """An optimizer, or what steps one."""
    OTHER = "other"
    """Something whose `step` does not train."""
    MODEL = "model"


_STEPPERS = re.compile(r"optim|scaler|lbfgs|adam|(^|_)sgd|rmsprop|adagrad|(^|_)opts?(_|\d|$)|^opt|opts?$")
"""Names of what is stepped to update parameters; `opt` alone or as a part of the name."""

_OTHERS = re.compile(
    r"sched|(^|_)lrs?(_|$)|warm|anneal|(^|_)envs?(_|\d|$)|environment|gym|prof|pbar|progress|(^|_)bar$|token|simul"
    r"|(^|_)sim(_|$)|world|physics|writer|logg|timer|clock|meter|early|stopper|game|option(_|s|$)|optional|tracker"
    r"|monitor|(^|_)ema(_|$)|callback|(^|_)beta|decay|board|robot|turtle|motor|vehicle|player|cursor|browser|drone"
    r"|integrator|(^|_)ode(_|$)|sampler|diffusion|clip|(^|_)local_sgd|scene|stage$"
)
"""Names of what is stepped for other reasons: schedulers, environments, profilers, progress bars."""

OPTIMIZERS = re.compile(
    r"^(Fused|Distributed|Deep[Ss]peed\w*|CPU|Zero\w*|Paged|Sharded|Accelerated|Scheduled|Noam)?"
    r"(SGD|A?SGDW?|Adam\w*|[RNQ]?Adam\w*|LBFGS|RMSprop|Adagrad|Adadelta|Adafactor|Rprop|Lion\w*|LAMB|LARS|Lamb|Lars|Muon|Shampoo"
    r"|SparseAdam|SAM|Lookahead|Ranger\w*|Prodigy|Sophia\w*|GradScaler|\w*Optimizer\w*|\w*Optim)$"
)
"""Names of classes and functions that make what is stepped."""

SCHEDULERS = re.compile(r"LR$|Scheduler|OneCycle|scheduler")

_EVALUATION_WORDS = "eval|evals|evaluate|evaluation|evaluating|evaluator|valid|validate|validation|validating|val|test"
_EVALUATION = re.compile(rf"(^|_)({_EVALUATION_WORDS}|testing|tester|dev)(_|\d|$)")
_TRAINING = re.compile(r"(^|_)(train|training|trainer|fit)(_|\d|$)")
_NO_EVALUATION = re.compile(
    r"extract|feature|embed|stat(s|istics)?(_|$)|cache|encode|precompute|sampl|generat|teacher|calibrat|mean|std"
    r"|update_bn|warm|init|collect|rollout|dump|export|(^|_)fid(_|$)|visuali|plot|render|interpol|translate|decode|attack"
)
_BATCHES = re.compile(
    r"load(er)?s?($|_|\d)|(^|_)dls?($|_|\d)|batch|dataset|(^|_)data(_|$)|(^|_)ds$|(^|_)iter(ator)?$|(^|_)split$|^queue$"
)
_COUNTS = re.compile(r"size|^(n|num|max|total)_|(^|_)(bs|idx|index|count|num|len|max)$")
_LOOKING = re.compile(
    r"profil|bench|measur|(^|_)perf|(^|_)timeit|speed|flops|latenc|memory|check|salien|attrib|fisher|influence|attack|perturb|advers|(^|_)cam(_|$)|importance"
    r"|sensitiv|integrated_grad|jacob|hessian|visuali|dream|pgd|fgsm|explain|lipschitz|(^|_)test_"
)
_STEPS = re.compile(
    r"timestep|token|(^|_)steps?$|sigmas|layers|blocks|modules|(^|_)sizes$|shapes|configs|prompts?$|models$"
)
_PARTS = re.compile(r"(^|_)(train|training)_(step|batch)$|backward|accumulate|compute_grad")
_ACCUMULATION = re.compile(r"micro_?(batch|step)|accum|(^|_)ga_steps|chunk|sub_?batch|split_batch")
_SAMPLING = re.compile(r"^log_|^__call__$|^forward$")
_DRAWS = re.compile(r"(^|_)(get|next|sample|fetch|load|make|draw)_?(\w+_)?(batch|data|minibatch|samples?)")
_MODELS = re.compile(
    r"(^|_)(model|models|net|network|module|encoder|decoder|generator|discriminator|classifier|backbone|policy|actor"
    r"|critic|ae|vae|gan|cnn|rnn|lstm|mlp|gpt|bert|llm|lm|transformer|predictor|detector|segmentor|unet|resnet|vit|agent"
    r"|student|regressor|engine|ddp|fc|gnn|gcn|[gq]_?net|net[a-z]|m)(_[a-z]{1,2}|_?\d+|_ema|_engine|_ddp|_fn|_func)?$"
    r"|model$|net$"
)
_PREPARING = re.compile(
    r"^(optimize|load|save|build|make|get|create|prepare|init|compile|freeze|unfreeze|print|wrap|set|setup|update|export"
    r"|convert|restore|register|reset|define|unwrap|summary)_|^(_)?[A-Z]"
)
_METRICS = re.compile(
    r"loss|correct|(^|_)accs?(_|$|\d)|accurac|metric|(^|_)total|score|psnr|ssim|(^|_)err|bleu|perplex|(^|_)ppl|(^|_)mae(_|$)|mse"
    r"|criterion|cross_entropy|argmax|(^|_)f1|(^|_)auc|(^|_)iou|(^|_)map(_|$)|top1|top5|confusion|(^|_)nll|reward|returns?$|(?<!noise_)preds?(_|$)"
    r"|coco|evaluator|meter"
)
_QUALITY = re.compile(
    r"accurac|perplexit|(^|_)(accs?|mae|mse|rmse|psnr|ssim|bleu|rouge|ppl|f1|auc|auroc|roc|m?iou|wer|cer|top_?[15]|nll|elbo)(_|$)"
)
_INPUTS = re.compile(
    r"(^|_)(x|img|imgs|image|images|input|inputs|adv|delta|perturb\w*|noise|data|latents?|z|x_adv|target)(_|\d|$)"
)
_PARAMETERS = re.compile(r"(^|_)(w|b|p|v)\d*(_|$)|weight|bias|param|theta|(^|_)phi(_|$)|coef|^[WB]\d*$")
_LOSSES = re.compile(r"loss|(^|_)err|objective|(^|_)cost")
_UPDATERS = re.compile(r"scaler|backward|backprop|optimi[sz]e|(^|_)update|(^|_)step")
_KEEPERS = re.compile(
    r"save|checkpoint|ckpt|log|print|resume|restore|load|write|adjust|(^|_)lr(_|$)|sched|anneal|get_|clip"
)
_OPTIMIZING = re.compile(r"^(optimi[sz]e|take_step|apply_gradients|step_optimizer)$")
_STEP_FUNCTIONS = re.compile(
    r"(^|_)(train|training|optimizer|optimize|update|grad)_(step|batch|iter|iteration|minibatch)$|^step_optimizer"
)

NO_GRAD = frozenset({"no_grad", "inference_mode"})
_BACKWARD = frozenset({"backward", "manual_backward"})
_IN_PLACE = frozenset({"sub_", "add_", "addcdiv_", "addcmul_", "copy_", "lerp_", "set_"})
_FOREACH = frozenset({"_foreach_add_", "_foreach_sub_", "_foreach_addcdiv_", "_foreach_addcmul_"})

TELLING = (
    _BACKWARD
    | NO_GRAD
    | _FOREACH
    | {"zero_grad", "step", "eval", "optimizer_step", "train_batch", "step_and_update_lr", "grad"}
)
"""A code object none of whose names is here, and whose own name is not an evaluation's, tells nothing by itself."""

OTHER_FRAMEWORKS = frozenset(
    {
        "jax",
        "flax",
        "haiku",
        "equinox",
        "mxnet",
        "paddle",
        "tinygrad",
        "tensorflow",
        "mindspore",
        "chainer",
        "mlx",
        "oneflow",
    }
)
TORCH = re.compile(
    r"^(torch\w*|lightning\w*|pytorch\w*|accelerate|transformers|deepspeed|timm|apex|diffusers|trl|peft|fastai|ignite|colossalai"
    r"|fairseq|detectron2|mmengine|monai|megatron)$"
)
"""Top-level modules whose import says that a file is about torch."""


def call_signs(call: Call, thing: Thing | None) -> tuple[Sign, ...]:
    """What `call` says about training; `thing` is what its receiver is known to be."""
    name, receiver = call.name, words(call.receiver or "")
    optimizer = any(names_stepper(arg) for arg in call.arguments())
    if name in _BACKWARD:
        return () if receiver and _OTHERS.search(receiver) else (Sign.BACKWARD,)
    if name == "zero_grad":
        return (Sign.CLEAR,)
    if name == "optimizer_step":
        return (Sign.STEP,)
    if name == "train_batch" and "engine" in receiver:
        return (Sign.BACKWARD, Sign.STEP)
    if name in _FOREACH:
        return (Sign.MAYBE_STEP,)
    if name == "step" or (name.startswith("step_and") and _STEPPERS.search(receiver)):
        if thing is not None:
            return (Sign.STEP,) if thing is Thing.STEPPER else ()
        if not receiver or (_OTHERS.search(receiver) and not _STEPPERS.search(receiver)):
            return ()
        if receiver.startswith(("sched", "lr_sched")) or "scheduler" in receiver:
            return ()
        if optimizer or _STEPPERS.search(receiver):
            return (Sign.STEP,)
        return (Sign.MAYBE_STEP,)
    if optimizer and call.function is not None:
        # A callable object or a helper from elsewhere that does it all: scaler(loss, optimizer)
        last = words(name)
        if _KEEPERS.search(last) or (receiver and _OTHERS.search(receiver)):
            return ()
        loss = any(_LOSSES.search(words(n)) for arg in call.arguments() if is_dotted(arg) for n in path(arg)[-1:])
        if loss and _UPDATERS.search(last):
            return (Sign.BACKWARD, Sign.STEP)
        if _OPTIMIZING.search(last):
            return (Sign.STEP,)
        if _STEP_FUNCTIONS.search(last):
            return (Sign.BACKWARD, Sign.STEP)
    return ()


def is_by_handed_optimizer(call: Call) -> bool:
    """Whether `call` is judged by the optimizer among its arguments, so that what it calls tells more."""
    return call.name not in _BACKWARD and call.name not in ("step", "zero_grad", "optimizer_step")


def is_no_evidence(call: Call, thing: Thing | None) -> bool:
    """Whether `call` steps something, but nothing that trains."""
    return call.name == "step" and call.receiver is not None and not call_signs(call, thing)


def names_stepper(expr: Expr) -> bool:
    """Whether an expression is a variable or attribute named like an optimizer."""
    if isinstance(expr, Item):
        expr = expr.value
    if not is_dotted(expr):
        return False
    last = words(path(expr)[-1])
    return bool(_STEPPERS.search(last)) and not _OTHERS.search(last) and "scaler" not in last


# Updates by hand


def is_update_call(call: Call, grads: frozenset[str]) -> bool:
    """Whether `call` is like `p.data.sub_(lr * p.grad)`; `grads` are variables that hold gradients."""
    if call.name not in _IN_PLACE or call.target is None:
        return False
    return _updates(call.target, list(call.arguments()), grads)


def is_update_operation(operation: Operation, grads: frozenset[str]) -> bool:
    """Whether an operation in place is like `w -= lr * w.grad`."""
    return operation.sign in ("-=", "+=") and _updates(operation.left, [operation.right], grads)


def is_update_store(store: Store, grads: frozenset[str]) -> bool:
    """Whether an assignment is like `p.data = p.data - lr * p.grad`."""
    value = store.value
    return (
        isinstance(value, Operation)
        and value.sign in ("-", "+")
        and _owner(value.left) == _owner(store.target)
        and _updates(store.target, [value.right], grads)
    )


def _updates(target: Expr, values: list[Expr], grads: frozenset[str]) -> bool:
    owner = _owner(target)
    if not owner or owner[-1] == "grad" or _INPUTS.search(words(owner[-1])):
        return False
    parts = [part for value in values for part in within(value)]
    if any(isinstance(part, Attribute | Name) and path(part)[-1:] == ("sign",) for part in parts):
        return False  # an attack moves an input along the sign of its gradient
    for part in parts:
        if isinstance(part, Attribute) and part.name == "grad" and _owner(part.value) == owner:
            return True
        if isinstance(part, Name) and part.id in grads and _PARAMETERS.search(words(owner[-1])):
            return True
    return False


def _owner(expr: Expr) -> tuple[str, ...]:
    """The name of a tensor, without `.data` and such."""
    names = path(expr)
    while names and names[-1] in ("data", "detach"):
        names = names[:-1]
    return names


def holds_gradients(expr: Expr) -> bool:
    """Whether a value comes from `torch.autograd.grad()`."""
    while isinstance(expr, Element | Item):
        expr = expr.of if isinstance(expr, Element) else expr.value
    return isinstance(expr, Call) and expr.path[-2:] == ("autograd", "grad")


def moves_by_sign(call: Call) -> bool:
    """Whether `call` takes the sign of a gradient, as attacks on a model's input do."""
    return call.name in ("sign", "sign_") and any("grad" in words(name) for name in names_in(call))


# Things


def thing_made_by(names: tuple[str, ...]) -> Thing | None:
    """What a call of this dotted name makes, as far as that is certain."""
    if not names:
        return None
    if SCHEDULERS.search(names[-1]) or "lr_scheduler" in names:
        return Thing.OTHER
    if OPTIMIZERS.match(names[-1]) or "optim" in names[:-1]:
        return Thing.STEPPER
    if names[-1] == "make" and any(part.startswith("gym") for part in names):
        return Thing.OTHER
    return None


def thing_of_type(names: tuple[tuple[str, str], ...]) -> Thing | None:
    """What an object is by the (module, name) of its type and the type's bases."""
    for module, name in names:
        top = module.partition(".")[0]
        if "lr_scheduler" in module or SCHEDULERS.search(name) or top in ("gym", "gymnasium", "tqdm"):
            return Thing.OTHER
        if name in ("Optimizer", "GradScaler", "DeepSpeedEngine", "AcceleratedOptimizer"):
            return Thing.STEPPER
        if module.startswith("torch.profiler") or name == "Env":
            return Thing.OTHER
        if module.startswith("torch.nn") and name == "Module":
            return Thing.MODEL
    return None


# Evaluation


def names_evaluation(name: str) -> bool:
    """Whether a function or variable is named like an evaluation: `evaluate`, `val_loader`, `run_validation`."""
    return _EVALUATION.search(words(name)) is not None


def counts_evaluation(name: str) -> bool:
    """Whether a number is named like that of evaluation steps: `eval_iters`, `num_test_batches`."""
    return re.match(rf"((num|n|max|total)_)?({_EVALUATION_WORDS})(_|$)", words(name)) is not None


def names_training(name: str) -> bool:
    """Whether a function or variable is named for training: `train_loader`."""
    return _TRAINING.search(words(name)) is not None


def names_other_use(name: str) -> bool:
    """Whether a function is named for what is no evaluation though it asks a model: `extract_features`."""
    return _NO_EVALUATION.search(words(name)) is not None


def names_sampling(name: str) -> bool:
    """Whether a function shows or returns what a model makes, whatever else its name says: `log_validation`."""
    return _SAMPLING.search(words(name)) is not None


def names_passing_look(name: str) -> bool:
    """Whether a function computes gradients for another purpose than training: `profile`, `fisher_information`."""
    return _LOOKING.search(words(name)) is not None


def names_part_of_step(name: str) -> bool:
    """Whether a function is named like a part of one training step: `train_step`, `forward_backward`."""
    return _PARTS.search(words(name)) is not None


def names_accumulation(name: str) -> bool:
    """Whether a variable counts the parts of one batch."""
    return _ACCUMULATION.search(words(name)) is not None


def names_batches(name: str) -> bool:
    """Whether a variable is named like something that yields batches."""
    return _BATCHES.search(words(name)) is not None and not _COUNTS.search(words(name))


def names_steps(name: str) -> bool:
    """Whether a variable is named like the steps of making one thing: `timesteps`, `tokens`."""
    return _STEPS.search(words(name)) is not None


def draws_batch(name: str) -> bool:
    """Whether a function is named like one that returns a batch: `get_batch`."""
    return _DRAWS.search(words(name)) is not None


def names_model(name: str) -> bool:
    """Whether what is called is named like a model."""
    return _MODELS.search(words(name)) is not None and _PREPARING.search(name) is None


def names_metric(name: str) -> bool:
    """Whether a variable or function is named like a measure of quality: `total_loss`, `correct`."""
    return _METRICS.search(words(name)) is not None


def names_quality(name: str) -> bool:
    """Whether a function is named for a measure of how well a model does: `accuracy`, `mean_iou`, `compute_mae`."""
    return _QUALITY.search(words(name)) is not None


@cache
def words(name: str) -> str:
    """`valLoader` as `val_loader`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
