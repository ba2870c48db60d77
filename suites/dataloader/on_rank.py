"""What a rank of the dataloader suite does; `harness.instruments.distributed.rank_pool` calls it by name."""

from __future__ import annotations

import base64
import importlib
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import torch
import torch.distributed as dist

from harness.instruments.distributed.rank_worker import RankState
from harness.records import Unavailable
from suites.dataloader.batch import INSTALL, LoaderSpec, PackedBatch, RankPlace
from suites.dataloader.fed_step import FedTrainer
from suites.dataloader.loader_ranks import loader_module


def begin(state: RankState, loader: str, spec: Mapping[str, Any], libraries: Sequence[str]) -> None:
    """Import what the loader needs; nothing is loaded yet."""
    torch.set_num_threads(1)
    state["spec"] = msgspec.convert(spec, LoaderSpec)
    state["place"] = RankPlace.of(dist.get_rank(), state["spec"].cp_size)
    state["module"] = loader_module(loader)
    for name in libraries:
        with suppress(ImportError):  # a library that a loader imports in another way costs time later
            importlib.import_module(name)
    state["known"] = set(sys.modules)


def libraries(state: RankState) -> list[str]:
    """Return the libraries that this rank has imported since it began, in order."""
    new = [name for name in sys.modules if name not in state["known"]]
    own = {*sys.stdlib_module_names, "suites", "harness"}
    return [name for name in new if "." not in name and not name.startswith("_") and name not in own]


def first_batch(state: RankState) -> float:
    """Create the loader and return the seconds until its first batch, which is kept for the next call."""
    dist.barrier()
    begin_s = time.perf_counter()
    try:
        state["batches"] = state["module"].batches(state["spec"], state["place"])
        state["ready"] = [next(state["batches"])]
    except ImportError as error:
        raise Unavailable(f"{error}: {INSTALL}") from error
    return time.perf_counter() - begin_s


def _next(state: RankState) -> PackedBatch:
    batch: PackedBatch = state["ready"].pop() if state["ready"] else next(state["batches"])
    return batch


def rows(state: RankState, count: int) -> list[dict[str, Any]]:
    """Return this many batches as plain data: tokens and segments as base64 of 16-bit integers."""
    taken = []
    for _ in range(count):
        one = _next(state)
        taken.append(
            {
                "shape": list(one.tokens.shape),
                "tokens": base64.b64encode(one.tokens.astype("<u2").tobytes()).decode(),
                "segments": base64.b64encode(one.segments.astype("<u2").tobytes()).decode(),
                "documents": int(one.documents),
                "real_tokens": int(one.real_tokens),
            }
        )
    return taken


def take(state: RankState, first: int, count: int, least_s: float = 0.0) -> dict[str, float]:
    """Load `first` and then `count` batches, which nobody uses, and `count` more until `least_s` have passed.

    Return the timed ones, their seconds until the last rank has its last, and what was in their full rows.
    """
    dist.barrier()
    for _ in range(first):
        _next(state)
    dist.barrier()
    begin_s = time.perf_counter()
    contents = [counted(_next(state)) for _ in range(count)]
    while (taken_s := slowest_s(begin_s)) < least_s:
        contents += [counted(_next(state)) for _ in range(count)]
    return {
        "seconds": taken_s,
        "batches": len(contents),
        **{name: sum(one[name] for one in contents) for name in ("tokens", "documents")},
    }


def slowest_s(begin_s: float) -> float:
    """Return the most seconds that any rank has spent since its `begin_s`."""
    taken_s = torch.tensor(time.perf_counter() - begin_s, dtype=torch.float64)
    dist.all_reduce(taken_s, dist.ReduceOp.MAX)
    return float(taken_s)


def counted(batch: PackedBatch) -> dict[str, float]:
    """Return the real tokens and documents in the full rows of a batch."""
    return {"tokens": int(batch.real_tokens), "documents": int(batch.documents)}


def begin_training(state: RankState, sizes: Sequence[int], seed: int) -> None:
    """Create the model that batches are trained on; `sizes`: its hidden size, layers and heads."""
    hidden_size, layers, heads = sizes
    state["trainer"] = FedTrainer(hidden_size, layers, heads, state["spec"].cp_size, seed)


def train(state: RankState, first: int, warm_up: int, count: int) -> list[dict[str, float]]:
    """Load `first` batches that nobody uses, train on `warm_up` and then on `count`; return these steps."""
    trainer: FedTrainer = state["trainer"]
    dist.barrier()
    for _ in range(first):
        _next(state)
    for _ in range(warm_up):
        trainer.step(_next(state))
    steps = []
    for _ in range(count):
        begin_s = time.perf_counter()
        batch = _next(state)
        waited_s = time.perf_counter() - begin_s
        cpu_s, flop = trainer.step(batch)
        step_s = time.perf_counter() - begin_s
        own = {"step_s": step_s, "wait_s": waited_s, "cpu_s": cpu_s, "flop": flop}
        steps.append({**own, **counted(batch)})
    return steps


def stop(state: RankState) -> None:
    """End the loader, and what it has started."""
    batches = state.pop("batches", None)
    if hasattr(batches, "close"):
        batches.close()
