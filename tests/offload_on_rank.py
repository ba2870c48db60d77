"""What the ranks of tests/test_offload.py are asked to do beside `suites.offload.on_rank`."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import torch.distributed as dist
from torch import nn

from suites.offload import on_rank
from suites.training.techniques import ddp, host_update

ALONE = SimpleNamespace(
    get_world_size=dist.get_world_size,
    get_rank=dist.get_rank,
    broadcast=dist.broadcast,
    reduce=lambda *given: None,
)
STALE = SimpleNamespace(
    get_world_size=dist.get_world_size,
    get_rank=dist.get_rank,
    broadcast=lambda *given: None,
    reduce=dist.reduce,
)


def freeze(trainer):
    """The head is left as it is."""
    trainer.optimizer.inner.param_groups[0]["params"].pop()


def forget(trainer):
    """The first moments are zero before each step."""
    for state in trainer.optimizer.inner.state.values():
        state["exp_avg"].zero_()


def double(trainer):
    """Gradients of a sum over two ranks' batches in place of their mean."""
    for parameter in trainer.plain.parameters():
        parameter.register_hook(lambda gradient: 2 * gradient)


def repeat(trainer):
    """The same batch again and again."""
    trainer._taken = 0


class Reducing(nn.Module):
    """In DDP's place; it reduces nothing."""

    def __init__(self, model, **settings):
        super().__init__()
        self.model = model

    def forward(self, *batch):
        return self.model(*batch)


PATCHES = {
    "ddp reduces nothing": lambda: patch.object(ddp, "DistributedDataParallel", Reducing),
    "host_update reduces nothing": lambda: patch.object(host_update, "dist", ALONE),
    "host_update keeps parameters": lambda: patch.object(host_update, "dist", STALE),
}
ONCE = {"the head is frozen": freeze, "gradients are summed": double}
EACH_STEP = {"moments are forgotten": forget, "batches repeat": repeat}


def spoilt(memory, step, folder, steps, wrong):
    """Losses of a training that is wrong in one way; of a right one, where `wrong` is none of them."""
    with PATCHES.get(wrong, nullcontext)():
        trainer = on_rank.build_trainer(step, folder)
        ONCE.get(wrong, id)(trainer)
        losses = []
        for _ in range(steps):
            EACH_STEP.get(wrong, id)(trainer)
            losses.append(on_rank.train_step(trainer))
        trainer.close()
    return losses


def swapped(memory, step, folder):
    """Bytes in the folder while the engine stands, and after it is closed."""
    trainer = on_rank.build_trainer(step, folder)
    on_rank.train_step(trainer)
    dist.barrier()
    stands_B = size_B(folder)
    dist.barrier()
    trainer.close()
    dist.barrier()
    return [stands_B, size_B(folder)]


def size_B(folder):
    return sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
