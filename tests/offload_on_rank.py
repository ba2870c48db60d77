"""What the ranks of tests/test_offload.py are asked to do beside `suites.offload.on_rank`."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import torch.distributed as dist

from suites.offload import on_rank
from suites.offload.engines import ddp, host_update

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
    trainer.engine.optimizer.param_groups[0]["params"].pop()


def forget(trainer):
    """The first moments are zero before each step."""
    for state in trainer.engine.optimizer.state.values():
        state["exp_avg"].zero_()


def double(trainer):
    """Gradients of a sum over two ranks' batches in place of their mean."""
    for parameter in trainer.engine.model.parameters():
        parameter.register_hook(lambda gradient: 2 * gradient)


def repeat(trainer):
    """The same batch again and again."""
    trainer.seen = 0


PATCHES = {
    "ddp reduces nothing": lambda: patch.object(ddp, "DistributedDataParallel", lambda model, **_: model),
    "host_update reduces nothing": lambda: patch.object(host_update, "dist", ALONE),
    "host_update keeps parameters": lambda: patch.object(host_update, "dist", STALE),
}
ONCE = {"the head is frozen": freeze, "gradients are summed": double}
EACH_STEP = {"moments are forgotten": forget, "batches repeat": repeat}


def spoilt(memory, workload, plan, seed, steps, wrong):
    """Losses of a training that is wrong in one way; of a right one, where `wrong` is none of them."""
    with PATCHES.get(wrong, nullcontext)():
        trainer = on_rank.made(workload, plan, seed)
        ONCE.get(wrong, id)(trainer)
        losses = []
        for _ in range(steps):
            EACH_STEP.get(wrong, id)(trainer)
            losses.append(float(trainer.step()))
        trainer.engine.close()
    return losses


def swapped(memory, workload, plan, seed):
    """Bytes in the folder while the engine stands, and after it is closed."""
    trainer = on_rank.made(workload, plan, seed)
    trainer.step()
    dist.barrier()
    stands_B = size_B(workload["folder"])
    dist.barrier()
    trainer.engine.close()
    dist.barrier()
    return [stands_B, size_B(workload["folder"])]


def size_B(folder):
    return sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
