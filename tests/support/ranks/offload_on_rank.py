"""What the ranks of tests/suites/offload are asked to do in addition to `suites.offload.on_rank`."""

import ctypes
import gc
import os
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import torch.distributed as dist
from torch import nn

from suites.offload import on_rank
from suites.offload.cgroup import PAGE_B
from suites.training.techniques import ddp, host_update


def freeze(state):
    """Freeze the rank's objects, so that collections of garbage do not traverse them.

    Deepspeed's third stage and `harness.instruments.memory.allocator.watch` begin with some, which look
    through all of torch and deepspeed each time. The collection here traverses only what was made since.
    """
    gc.collect()
    gc.freeze()


def settle(state):
    """Freeze, and copy few bytes to measure the rate of copies, which no test asks for."""
    on_rank.COPIED_B = 2**10
    freeze(state)


COLLECTIVES = {name: getattr(dist, name) for name in ("get_world_size", "get_rank", "broadcast", "reduce")}
ALONE = SimpleNamespace(**{**COLLECTIVES, "reduce": lambda *given: None})
STALE = SimpleNamespace(**{**COLLECTIVES, "broadcast": lambda *given: None})


def freeze_head(trainer):
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
    def __init__(self, model, **settings):
        super().__init__()
        self.model, self.bucket_bytes_cap = model, 0

    def forward(self, *batch):
        return self.model(*batch)


PATCHES = {
    "ddp reduces nothing": lambda: patch.object(ddp, "DistributedDataParallel", Reducing),
    "host_update reduces nothing": lambda: patch.object(host_update, "dist", ALONE),
    "host_update keeps parameters": lambda: patch.object(host_update, "dist", STALE),
}
ONCE = {"the head is frozen": freeze_head, "gradients are summed": double}
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


def course(state, step, folder, steps, managed=None, close=True):
    """Return losses, what has moved before the first step and after each, and the resident share."""
    trainer = on_rank.build_trainer(step, folder, managed)
    optimizer = trainer.optimizer
    seen = {"pid": os.getpid(), "losses": [], "moved": [], "read_kB": []}

    def look():
        seen["moved"].append(optimizer.moved() if hasattr(optimizer, "moved") else {})
        seen["read_kB"].append(read_kB())

    look()
    for _ in range(steps):
        seen["losses"].append(on_rank.train_step(trainer))
        look()
    if managed is not None:
        states = [(one, optimizer.inner.state[one]) for one in trainer.plain.parameters()]
        tensors = [one for p, state in states for one in (p, p.grad, state["exp_avg"], state["exp_avg_sq"])]
        seen["allocated_B"] = trainer.host.allocated_B
        seen["on_host"] = all(trainer.host.holds(one) for one in tensors)
        seen["resident_B"] = sum(resident_B(one) for one in tensors)
        group = optimizer.memory.group.path
        seen["limited"] = str(os.getpid()) in (group / "cgroup.procs").read_text().split()
        if close:
            trainer.close()
            seen["gone"] = not group.exists()
    return seen


def resident_B(tensor):
    """Return bytes of the tensor's pages that are in RAM (mincore(2))."""
    pages = -(-tensor.nbytes // PAGE_B)
    found = (ctypes.c_ubyte * pages)()
    libc = ctypes.CDLL(None, use_errno=True)
    code = libc.mincore(ctypes.c_void_p(tensor.data_ptr()), ctypes.c_size_t(tensor.nbytes), found)
    assert code == 0, os.strerror(ctypes.get_errno())
    return PAGE_B * sum(one & 1 for one in found)


def read_kB():
    """Return the kB read from all disks of the machine, by all processes."""
    with open("/proc/vmstat") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("pgpgin "))
