"""Builds a `TrainingStep` and runs it, fake tensors for `suites.memory.walk`, real ones for `measure`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from suites.memory.step import TrainingStep, Workload
from suites.training.model import ModelShape, Transformer

Mark = Callable[[str], None]
"""Told what comes next: "forward 0", "backward 0", …, "clip", "optimizer", "zero_grad"."""

LOOPS: dict[str, dict[str, Any]] = {
    "default": {},
    "for_loop": {"foreach": False, "fused": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
}
"""`Workload.optimizer_impl` as arguments of torch's optimizers."""

LEARNING_RATE = {"adamw": 1e-3, "sgd_momentum": 1e-2}


class Training(NamedTuple):
    """A step that is ready to run."""

    step: TrainingStep
    model: nn.Module
    optimizer: Any
    device: torch.device
    data: torch.Generator


def shape_of(workload: Workload) -> ModelShape:
    """The workload's model, without what it is trained with."""
    names = ModelShape.__dataclass_fields__
    return ModelShape(**{name: getattr(workload, name) for name in names})


def build_model(step: TrainingStep, num_hidden_layers: int | None = None) -> nn.Module:
    """The step's model on the default device, before `wrap`; with another number of layers where asked."""
    torch.manual_seed(step.seed)
    with default_dtype(step.model_dtype):
        if step.make_model is not None:
            return step.make_model(
                step, step.workload.num_hidden_layers if num_hidden_layers is None else num_hidden_layers
            )
        shape = shape_of(step.workload)
        if num_hidden_layers is not None:
            shape = ModelShape(
                **{
                    **{n: getattr(shape, n) for n in shape.__dataclass_fields__},
                    "num_hidden_layers": num_hidden_layers,
                }
            )
        return Transformer(shape, step.attention)


def set_up(step: TrainingStep, device: torch.device, num_hidden_layers: int | None = None) -> Training:
    """Model, wrappers and optimizer, in the order in which a training script makes them."""
    with torch.device(device):
        model = build_model(step, num_hidden_layers)
    for wrap in step.wrap:
        model = wrap(model)
    model.train()
    make_optimizer = step.make_optimizer or plain_optimizer
    optimizer = make_optimizer(list(model.parameters()), step.workload)
    return Training(step, model, optimizer, device, torch.Generator().manual_seed(step.seed))


def train_once(training: Training, mark: Mark = lambda phase: None) -> Tensor:
    """One training step; the mean loss of its micro-batches, as a tensor of no dimension."""
    step, model, workload = training.step, training.model, training.step.workload
    losses = []
    for index in range(workload.gradient_accumulation_steps):
        mark(f"forward {index}")
        tokens_BT, targets_BT = make_batch(training)
        with step.around(training.device.type):
            loss = model(tokens_BT, targets_BT)
            if workload.gradient_accumulation_steps > 1:
                loss = loss / workload.gradient_accumulation_steps
        mark(f"backward {index}")
        loss.backward()
        losses.append(loss.detach())
        del loss, tokens_BT, targets_BT
    if workload.max_grad_norm is not None:
        mark("clip")
        clip(training, workload.max_grad_norm)
    mark("optimizer")
    training.optimizer.step()
    mark("zero_grad")
    training.optimizer.zero_grad()
    return torch.stack(losses).sum()


def make_batch(training: Training) -> tuple[Tensor, Tensor]:
    """Tokens and those that follow them, int64, each (batch, seq_len), at random from the step's seed."""
    workload = training.step.workload
    size = (workload.micro_batch_size, workload.seq_len + 1)
    drawn = torch.randint(workload.vocab_size, size, generator=training.data).to(training.device)
    return drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous()


def clip(training: Training, max_norm: float) -> None:
    """Clip the gradients' norm: by the optimizer where it holds them, else those of the parameters."""
    if hasattr(training.optimizer, "clip_grad_norm"):
        training.optimizer.clip_grad_norm(max_norm)
    else:
        torch.nn.utils.clip_grad_norm_(training.model.parameters(), max_norm)


def plain_optimizer(parameters: Iterable[nn.Parameter], workload: Workload) -> torch.optim.Optimizer:
    """torch's own AdamW, or SGD with momentum."""
    loop, rate = LOOPS[workload.optimizer_impl], LEARNING_RATE[workload.optimizer]
    if workload.optimizer == "sgd_momentum":
        return torch.optim.SGD(parameters, lr=rate, momentum=0.9, **loop)
    return torch.optim.AdamW(parameters, lr=rate, weight_decay=0.1, **loop)


def state_tensors(optimizer: Any) -> list[Tensor]:
    """What the optimizer keeps from step to step."""
    if hasattr(optimizer, "state_tensors"):
        return list(optimizer.state_tensors())
    return [
        value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)
    ]


def tensors_by_kind(optimizer: Any) -> list[tuple[Tensor, str]]:
    """What an engine holds in places of its own, with the kind of memory it is; none for plain optimizers."""
    return list(optimizer.tensors_by_kind()) if hasattr(optimizer, "tensors_by_kind") else []


def held_gradients(model: nn.Module) -> list[Tensor]:
    """Gradients that parameters hold now: `.grad`, or a `main_grad` in a wider type."""
    held = [(parameter.grad, getattr(parameter, "main_grad", None)) for parameter in model.parameters()]
    return [gradient for pair in held for gradient in pair if gradient is not None]


def blocks_of(model: nn.Module) -> nn.ModuleList:
    """The model's layers: `model.blocks`, or the longest list of modules in it."""
    blocks = getattr(model, "blocks", None)
    if isinstance(blocks, nn.ModuleList):
        return blocks
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    if not lists:
        raise ValueError(f"{type(model).__name__} has no list of layers")
    return max(lists, key=len)


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Tensors made within are of `dtype` where nothing else is said."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
