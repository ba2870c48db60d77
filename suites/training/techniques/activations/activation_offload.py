"""Activation offload (torch's `save_on_cpu`): tensors saved for the backward pass are kept on the host.

Without `prefetch` each tensor is copied when it is saved and when it is needed, and computation waits. With
it, copies run alongside the computation: a block's copies to the host have until the end of the next block's
forward pass; copies back start with the backward pass of the block above, one block ahead. The last block's
tensors stay, because the backward pass starts with them. So the device has the tensors of at most two blocks.

Weights and buffers are never copied; what several operations save is copied once. On CUDA, without
`prefetch`, it is torch's `save_on_cpu`, which also copies weights, and copies a tensor as often as it is
saved.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

from suites.training.contract import EXACT, Contract
from suites.training.declared import ActivationOffloadSettings
from suites.training.dry_run.simulated_host import SimulatedHost
from suites.training.models.model import blocks_of
from suites.training.offload.activation_shelf import Shelf, Stored
from suites.training.offload.host_memory import (
    AtOnce,
    Carrier,
    CopyThread,
    HostMemory,
    SideStream,
    WhenNeeded,
)
from suites.training.resources import Resources
from suites.training.step import TrainingStep


def contract(settings: ActivationOffloadSettings) -> Contract:
    """Return `EXACT`: the same bytes come back."""
    return EXACT


def apply(step: TrainingStep, settings: ActivationOffloadSettings) -> TrainingStep:
    """Return the step with its blocks' activations on the host."""
    place = "host_prefetched" if settings.prefetch else "host"
    return replace(
        step,
        features=replace(step.features, activations_on=place),
        wraps=(*step.wraps, partial(wrap, settings)),
        layers_alike=step.layers_alike and not settings.prefetch,  # whose last layer keeps its tensors
    )


def wrap(settings: ActivationOffloadSettings, model: nn.Module, resources: Resources) -> nn.Module:
    """Make the blocks of `model` put on the host what they save."""
    host = resources.host
    if settings.prefetch:
        Ahead(model, Shelf(model, host, carrier_of(host)))
        return model
    make = Shelf(model, host, AtOnce()).hooks
    if isinstance(host, SimulatedHost) and host.cuda:
        make = partial(saved_tensors_hooks, host.keep, copied_up)
    elif host.device.type == "cuda":
        make = partial(on_cpu, host)
    for block in blocks_of(model):
        block.forward = partial(within, make, block.forward)
    return model


def carrier_of(host: HostMemory) -> Carrier:
    """Return what copies alongside the computation; a simulated copy takes as long as it may."""
    if isinstance(host, SimulatedHost):
        return WhenNeeded()
    return SideStream(host) if host.device.type == "cuda" else CopyThread(host)


def copied_up(saved: Tensor) -> Tensor:
    """Return a copy on the device."""
    return torch.empty(saved.shape, dtype=saved.dtype).copy_(saved)


def within(
    make: Callable[[], AbstractContextManager[Any]],
    forward: Callable[..., Tensor],
    *arguments: Any,
    **named: Any,
) -> Tensor:
    """Return a block's forward pass whose saved tensors go through its hooks."""
    with make():
        return forward(*arguments, **named)


def on_cpu(host: HostMemory) -> saved_tensors_hooks:
    """Return torch's own hooks into page-locked memory, which `host` counts."""
    hooks = save_on_cpu(pin_memory=True)
    pack: Callable[[Tensor], tuple[torch.device, Tensor]] = hooks.pack_hook

    def counted(tensor: Tensor) -> tuple[torch.device, Tensor]:
        device, saved = pack(tensor)
        host.note(saved)
        return device, saved

    hooks.pack_hook = counted
    return hooks


Stores = list["weakref.ref[Stored]"]
"""What one block saved, in order; each entry lives as long as the graph needs it."""


class Ahead:
    """Offload what all blocks but the last save: a block behind the forward pass, one ahead of the backward.

    It replaces the forward pass of each block.
    """

    def __init__(self, model: nn.Module, shelf: Shelf) -> None:
        blocks = blocks_of(model)
        self.shelf, self.blocks = shelf, len(blocks)
        self._before: Stores = []  # what the block before saved
        self._going: deque[tuple[int, Stored]] = deque()  # down, by number of block
        for number, block in enumerate(blocks):
            block.forward = partial(self.run, number, block.forward)

    def run(self, number: int, forward: Callable[..., Tensor], *arguments: Any, **named: Any) -> Tensor:
        """Run the forward pass of a block."""
        if number == 0:
            self._release_below(self.blocks)  # of an interrupted pass
            self._before = []
        mine: Stores = []
        if number < self.blocks - 1:
            storing = partial(self.shelf.storing, partial(self._down, number, mine))
            output = within(storing, forward, *arguments, **named)
        else:
            output = forward(*arguments, **named)
        self._release_below(number)
        if output.requires_grad:
            output.register_hook(partial(fetch, self._before))  # type: ignore[no-untyped-call]
        self._before = mine
        return output

    def _down(self, number: int, mine: Stores, stored: Stored) -> None:
        mine.append(weakref.ref(stored))
        self._going.append((number, stored))
        self._release_below(0)

    def _release_below(self, below: int) -> None:
        """Release the device's copies of what is on the host, for blocks below that number."""
        while self._going and (self._going[0][0] < below or self._going[0][1].copy.over()):
            self._going.popleft()[1].release()


def fetch(stores: Iterable[weakref.ref[Stored]], gradient: Tensor) -> None:
    """Start copying up what a block saved, the last first, as its backward pass needs it."""
    for reference in reversed(list(stores)):
        stored = reference()
        if stored is not None:
            stored.fetch()
