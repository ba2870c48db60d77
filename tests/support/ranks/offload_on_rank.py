"""What the ranks of tests/suites/offload/test_offload.py are asked to do beside `suites.offload.on_rank`."""

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
    """Leave the head untrained."""
    trainer.optimizer.inner.param_groups[0]["params"].pop()


def forget(trainer):
    """Zero the first moments before each step."""
    for state in trainer.optimizer.inner.state.values():
        state["exp_avg"].zero_()


def double(trainer):
    """Sum gradients over two ranks' batches instead of taking their mean."""
    for parameter in trainer.plain.parameters():
        parameter.register_hook(lambda gradient: 2 * gradient)


def repeat(trainer):
    """Train on the same batch again and again."""
    trainer._taken = 0


class Reducing(nn.Module):
    """In DDP's place; it reduces nothing."""

    def __init__(self, model, **settings):
        super().__init__()
        self.model = model
        self.bucket_bytes_cap = 0

    def forward(self, *batch):
        return self.model(*batch)


PATCHES = {
    "ddp reduces nothing": lambda: patch.object(ddp, "DistributedDataParallel", Reducing),
    "host_update reduces nothing": lambda: patch.object(host_update, "dist", ALONE),
    "host_update keeps parameters": lambda: patch.object(host_update, "dist", STALE),
}
ONCE = {"the head is frozen": freeze, "gradients are summed": double}
EACH_STEP = {"moments are forgotten": forget, "batches repeat": repeat}


def spoilt(state, step, folder, steps, wrong):
    """Return losses of a training with one fault, or of a correct one where `wrong` is not a fault."""
    with PATCHES.get(wrong, nullcontext)():
        trainer = on_rank.build_trainer(step, folder)
        ONCE.get(wrong, id)(trainer)
        losses = []
        for _ in range(steps):
            EACH_STEP.get(wrong, id)(trainer)
            losses.append(on_rank.train_step(trainer))
        trainer.close()
    return losses


def swapped(state, step, folder):
    """Return the bytes in the folder while the engine is open, and after it is closed."""
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
