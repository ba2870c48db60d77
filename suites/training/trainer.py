"""Build a `TrainingStep` and run it, on real or fake tensors, in one process or as one of many ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from suites.training import data
from suites.training.host_memory import HostMemory, Resources
from suites.training.mesh import meshes_of
from suites.training.models.model import Transformer
from suites.training.optimizers import RankOptimizer, torch_optimizer
from suites.training.step import TrainingStep

CPU = torch.device("cpu")

Batch = tuple[Tensor, Tensor]
"""Tokens and their successors, int64, each (B, T)."""


class Trainer:
    """A model with its wrappers and its optimizer, built in the order of a training script.

    `model` is what is called; `plain` is the same model with the parameter names from before any wrapper.
    `mark` is called with what comes next: "forward 0", "backward 0", …, "clip", "optimizer", "zero_grad". Of
    a pipeline, "schedule" is first, and passes of several stages also name their stage.
    `num_hidden_layers`: in place of the workload's. `folder`: where a technique's files are. `host`: the tier
    below `device`; None: this machine's.
    """

    def __init__(
        self,
        step: TrainingStep,
        device: torch.device = CPU,
        num_hidden_layers: int | None = None,
        folder: str = "",
        host: HostMemory | None = None,
    ) -> None:
        self.step, self.device = step, device
        self.host = host or HostMemory(device, folder)
        self.mark: Callable[[str], None] = lambda phase: None
        resources = Resources(device, self.host, folder, meshes_of(step, device.type))
        with torch.device(device):
            self.plain = build_model(step, num_hidden_layers)
        model = self.plain
        for wrap in step.wraps:
            model = wrap(model, resources)
        self.model = model
        self.model.train()
        make_optimizer = step.make_optimizer or torch_optimizer
        self.optimizer: RankOptimizer = make_optimizer(model, step.workload, resources)
        self._drawn = torch.Generator().manual_seed(step.seed)
        self._taken = 0  # batches of text
        self._after_update = [make(self) for make in step.after_update]

    def train_step(self, batches: Iterable[Batch] | None = None) -> Tensor:
        """Run one update from the workload's number of micro-batches; return their mean loss, a scalar.

        Without `batches`, each is drawn at random from the step's seed when its turn comes.
        """
        count = self.step.workload.gradient_accumulation_steps
        loss = self.accumulate(self._random_batches() if batches is None else batches, count)
        self.update()
        return loss

    def accumulate(self, batches: Iterable[Batch], count: int) -> Tensor:
        """Run the forward and backward passes of `count` micro-batches; return their mean loss, a scalar."""
        if self.step.passes is not None:
            return self.step.passes(self, batches, count)
        source = iter(batches)
        losses = []
        for index in range(count):
            self.mark(f"forward {index}")
            tokens_BT, targets_BT = next(source)
            losses.append(self.backward(tokens_BT, targets_BT, index, count))
            del tokens_BT, targets_BT
        return torch.stack(losses).mean()

    def backward(self, tokens_BT: Tensor, targets_BT: Tensor, index: int = 0, count: int = 1) -> Tensor:
        """Run the forward and backward pass of micro-batch `index` of `count`; return its loss.

        Its gradients are divided by `count`, and reduced over ranks with the last one, or as the step
        defines.
        """
        with self.step.reducing(self.model, index == count - 1):
            with self.step.around(self.device.type):
                loss: Tensor = self.model(tokens_BT, targets_BT)
                part = loss / count if count > 1 else loss
            self.mark(f"backward {index}")
            part.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def update(self) -> None:
        """Clip, step the optimizer, and release the gradients."""
        if self.step.workload.max_grad_norm is not None:
            self.mark("clip")
            self.optimizer.clip_grad_norm(self.step.workload.max_grad_norm)
        self.mark("optimizer")
        self.optimizer.step()
        self.mark("zero_grad")
        self.optimizer.zero_grad(self.step.keep_gradients)
        for change in self._after_update:
            change(self)

    def text_batch(self) -> Batch:
        """Return the next of this rank's batches of text, see `data.batch`.

        Ranks that share each layer, each sequence or the layers share it; no others do.
        """
        rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        ranks_per_batch = self.step.same_data_ranks
        number = self._taken * (world // ranks_per_batch) + rank // ranks_per_batch
        self._taken += 1
        tokens_BT, targets_BT = data.batch_of(self.step.workload, self.step.seed, number)
        return tokens_BT.to(self.device), targets_BT.to(self.device)

    def text_batches(self) -> list[Batch]:
        """Return the batches of this rank's next update."""
        return [self.text_batch() for _ in range(self.step.workload.gradient_accumulation_steps)]

    def parameters(self) -> dict[str, Tensor]:
        """Return the unsharded parameters by plain name; every rank must ask."""
        return self.optimizer.full_parameters(self.plain)

    def gradients(self) -> dict[str, Tensor]:
        """Return the unsharded gradients by plain name, before the update; every rank must ask."""
        return self.optimizer.full_gradients(self.plain)

    def close(self) -> None:
        """Release what techniques took besides tensors."""
        self.optimizer.close()

    def restart_data(self) -> None:
        """Draw the same random batches again from here on."""
        self._drawn.manual_seed(self.step.seed)

    def _random_batches(self) -> Iterator[Batch]:
        while True:
            yield data.random_batch(self.step.workload, self._drawn, self.device)


def build_model(step: TrainingStep, num_hidden_layers: int | None = None) -> nn.Module:
    """Return the step's model on the default device, before its wrappers."""
    depth = step.workload.num_hidden_layers if num_hidden_layers is None else num_hidden_layers
    torch.manual_seed(step.seed)
    if step.make_model is not None:
        with default_dtype(step.model_dtype):
            return step.make_model(step, depth)
    shape = replace(step.workload.shape, num_hidden_layers=depth)
    model = Transformer(shape, step.attention, step.functions)
    if step.model_dtype != torch.float32:
        narrow(model, step.model_dtype)
    return model


def narrow(model: nn.Module, dtype: torch.dtype) -> None:
    """Round parameters and buffers to `dtype` in place; `Module.to` cannot do it to fake tensors."""
    for tensor in chain(model.parameters(), model.buffers()):
        tensor.data = tensor.data.to(dtype)


def live_gradients(model: nn.Module) -> list[Tensor]:
    """Return the parameters' current gradients: `.grad`, or a `main_grad` in a wider type."""
    gradients = [(parameter.grad, getattr(parameter, "main_grad", None)) for parameter in model.parameters()]
    return [gradient for gradient in chain.from_iterable(gradients) if gradient is not None]


@contextmanager
def average_with_the_last(model: nn.Module, last: bool) -> Iterator[None]:
    """Average gradients, but those of distributed tensors, over all ranks after an update's last pass."""
    yield
    for gradient in live_gradients(model) if last else ():
        if not isinstance(gradient, DTensor):
            gradient.div_(dist.get_world_size())
            dist.all_reduce(gradient)


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Make `dtype` the default type of new tensors."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
