"""The functions that a rank runs for any suite that trains, called by name through `distributed.rank_pool`.

A suite's own `on_rank.py` adds what it measures: `state[key]` is the `Trainer` that `make` stored.

`DrainGloo` lets gloo's threads finish a collective before its caller continues. They keep its tensors
slightly longer than the call that waits for it, and the profiler does not see releases by those threads,
because it follows threads that compute: for `harness.instruments.memory.allocator.watch` the tensors would
live forever, and every later peak would be too high.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from harness.instruments import torch_internals
from harness.instruments.distributed.fake_process_group import use_ring_reduce_scatter
from harness.instruments.distributed.rank_worker import RankState, gpu
from harness.instruments.memory.allocator import watch
from suites.training.correctness import accumulate, badness, plain_gradients, text_updates
from suites.training.correctness import worst_gradient as worst_of
from suites.training.techniques import build_step
from suites.training.trainer import Trainer

THREADS = Path("/proc/self/task")
PAUSE_S = 2e-4
MOST_S = 0.2
"""How long to wait for threads that may have other work."""


BETWEEN_TWO = frozenset({"send", "recv_"})
"""Operations that are not waited for: two ranks that send to one another would both wait for ever.

The thread that calls them releases their tensors.
"""


class DrainGloo(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Makes each collective in the block end when its tensors are released, even asynchronous; costs time."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Run the operation; after one of a process group, wait for it and for the threads.

        Whoever waits for the result of a functional one releases its handle, and with it the tensors, unless
        a thread still has it; so the threads come first.
        """
        result = func(*args, **(kwargs or {}))
        if func.namespace == "c10d" and func._opname not in BETWEEN_TWO:
            for one in tree_leaves(result):
                if hasattr(one, "wait"):  # the Work object next to the tensors
                    one.wait()
            wait_for_threads()
        elif func.namespace == "_c10d_functional" and isinstance(args[-1], str):
            wait_for_group(args[-1])
            for one in tree_leaves(result):
                torch_internals.wait_for(one)
        return result


def wait_for_group(name: str) -> None:
    """Wait until the ranks of a functional collective, whose last argument is their group, have all begun it.

    A thread that waits for another rank sleeps, too; then it has work to do.
    """
    dist.barrier(torch_internals.process_group(name))
    wait_for_threads()


def wait_for_threads() -> None:
    """Wait until all other threads of this process sleep, or for the full time where that cannot be read."""
    end_s = time.monotonic() + MOST_S
    time.sleep(PAUSE_S)
    while time.monotonic() < end_s and not _others_sleep():
        time.sleep(PAUSE_S)


def _others_sleep() -> bool:
    """Return whether they sleep, by the kernel (proc(5): state S); a thread that ended counts as sleeping."""
    own = str(threading.get_native_id())
    for thread in THREADS.iterdir() if THREADS.exists() else ():
        try:
            state = (thread / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if thread.name != own and state != "S":
            return False
    return THREADS.exists()


SETTLING, STEADY = 2, 3
"""Updates before a rank's memory is steady: the first creates states, the second is the first with them. Then
those whose peak counts."""


def device() -> torch.device:
    """Return this rank's GPU where ranks meet by NCCL, else the CPU."""
    return gpu() if dist.get_backend() == "nccl" else torch.device("cpu")


def use_ring(state: RankState) -> None:
    """Reduce to shares by the bytes of NCCL's ring where the ranks meet by gloo."""
    use_ring_reduce_scatter()


def make(state: RankState, key: str, step: Mapping[str, Any], folder: str = "") -> None:
    """Keep a trainer of the described step under `key`."""
    if device().type == "cuda":
        torch.cuda.set_device(device())
    state[key] = Trainer(build_step(**step), device(), folder=folder)


def drop(state: RankState, key: str) -> None:
    """Release the trainer."""
    trainer = state.pop(key, None)
    if trainer is not None:
        trainer.close()


def updates(state: RankState, key: str, count: int) -> dict[str, list[float]]:
    """Run updates on text and return the loss and the seconds of each, without making its batches."""
    trainer: Trainer = state[key]
    losses, times_s = [], []
    for _ in range(count):
        batches = trainer.text_batches()
        dist.barrier()
        begin_s = time.perf_counter()
        loss = float(trainer.train_step(batches))
        if device().type == "cuda":
            torch.cuda.synchronize()
        times_s.append(time.perf_counter() - begin_s)
        losses.append(loss)
    return {"loss": losses, "seconds": times_s}


def peak_memory(state: RankState, step: Mapping[str, Any]) -> int:
    """Return the peak live bytes of steady updates on this rank's device, by the allocator's events.

    The trainer is a new one: on the CPU only tensors made meanwhile are counted. Where ranks synchronize
    after some updates, as many more are run.
    """
    on_cpu = device().type == "cpu"
    gc.collect()
    before_B = 0 if on_cpu else torch.cuda.memory_allocated(device())
    drained = DrainGloo() if on_cpu else nullcontext()
    with drained, watch(device()) as watched:
        trainer = Trainer(build_step(**step), device())
        for update in range(SETTLING + STEADY + trainer.step.updates_between_syncs - 1):
            watched.mark(f"update {update}")
            trainer.train_step(trainer.text_batches())
            if on_cpu:
                wait_for_threads()  # DDP's collectives start where no mode sees them
    trainer.close()
    return max(peak.live_B for peak in watched.peaks[SETTLING:]) - before_B


def worst_gradient(state: RankState, key: str, shared: Sequence[Any] = ()) -> tuple[float, str]:
    """Return which of a new trainer's first gradients is off plain PyTorch's the most, and how far.

    Plain PyTorch: one model with the techniques `shared`, on this rank, takes the batches of all ranks.
    """
    trainer: Trainer = state[key]
    accumulate(trainer, trainer.text_batches())
    ours = trainer.gradients()
    batches = next(text_updates(trainer.step, 1))
    return worst_of(ours, plain_gradients(trainer.step, batches, shared, trainer.device))


def spread(state: RankState, key: str) -> float:
    """Return by how much parameters differ between ranks at most, relative to the largest parameter."""
    worst = 0.0
    for parameter in state[key].parameters().values():
        low, high = (parameter.to(device(), copy=True) for _ in range(2))  # NCCL sends no host memory
        dist.all_reduce(low, dist.ReduceOp.MIN)
        dist.all_reduce(high, dist.ReduceOp.MAX)
        off = float((high - low).abs().max() / high.abs().max().clamp_min(1e-12))
        worst = max(worst, off, key=badness)
    return worst
