"""The batches of an update, made in the step or ahead of it by another process.

A batch is text of `suites.training.data`, made word by word in Python, as a tokenizer works through text.
Ahead of a step means one batch ahead: while an update runs, the next one's batch is made.
"""

from __future__ import annotations

import multiprocessing
from concurrent.futures import Future, ProcessPoolExecutor
from functools import lru_cache
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from suites.stack.workload import Workload
from suites.training import data

Batch = tuple[Tensor, Tensor]
"""Tokens and their successors, int64, each (sequences, T)."""

Arrays = tuple[NDArray[np.int64], NDArray[np.int64]]


def make_batch(vocab_size: int, size: tuple[int, int], seed: int, number: int) -> Arrays:
    """Return the batch of one update: tokens and their successors, each of `size`."""
    tokens, targets = data.batch(vocab_size, size, seed, number)
    return tokens.numpy(), targets.numpy()


class UpdateLoader(Protocol):
    """Gives the batches of one update after the other, and makes the next one in or during a step."""

    def take(self) -> Batch:
        """Return the batch of the next update, on the device."""

    def finish(self) -> None:
        """Wait until what was begun during the step is ready: a step ends with it."""


class LoadedInStep:
    """Makes each batch when the step asks for it, as a DataLoader without workers does."""

    def __init__(self, workload: Workload, seed: int, device: torch.device) -> None:
        self._arguments = workload.vocab_size, (workload.sequences, workload.seq_len), seed
        self._device, self._taken = device, 0

    def take(self) -> Batch:
        """Make a batch, and return it."""
        batch = on_device(make_batch(*self._arguments, self._taken), self._device)
        self._taken += 1
        return batch

    def finish(self) -> None:
        """Do nothing: nothing was begun."""


class LoadedAhead:
    """Lets another process make the next batch while the step runs.

    A step begins with its batch ready and ends once the next one is, so each timed step has the work of one
    batch in it, and none is done during another variant's turn.
    """

    def __init__(self, workload: Workload, seed: int, device: torch.device) -> None:
        self._arguments = workload.vocab_size, (workload.sequences, workload.seq_len), seed
        self._device, self._taken = device, 0
        self._ready: Arrays = make_batch(*self._arguments, 0)
        self._begun: Future[Arrays] | None = None

    def take(self) -> Batch:
        """Return the batch that is ready; let the next one be made."""
        self._taken += 1
        self._begun = worker().submit(make_batch, *self._arguments, self._taken)
        return on_device(self._ready, self._device)

    def finish(self) -> None:
        """Wait for the next batch."""
        if self._begun is not None:
            self._ready, self._begun = self._begun.result(), None


@lru_cache(maxsize=1)
def worker() -> ProcessPoolExecutor:
    """Return the process that makes batches for all variants that load ahead: one of them runs at a time.

    It is forked, as a DataLoader's are, and computes on one thread.
    """
    return ProcessPoolExecutor(1, multiprocessing.get_context("fork"), torch.set_num_threads, (1,))


def stop_worker() -> None:
    """End that process, if it was started."""
    if worker.cache_info().currsize:
        worker().shutdown(wait=True, cancel_futures=True)
        worker.cache_clear()


def on_device(arrays: Arrays, device: torch.device) -> Batch:
    """Return a batch as tensors on the device."""
    tokens, targets = (torch.from_numpy(one).to(device) for one in arrays)
    return tokens, targets
