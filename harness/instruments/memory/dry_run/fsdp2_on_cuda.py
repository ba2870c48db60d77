"""What FSDP2 does on CUDA and not on a CPU: streams of its own, and copies of shards from the host.

It needs functions of torch that are not its interface, see `torch_internals`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from harness.instruments.torch_internals import require_tried_version

ALL_GATHER_STREAM, REDUCE_SCATTER_STREAM = 1, 2


@contextmanager
def fsdp2_streams(enter: Callable[[int], None], copies_on_own_stream: bool = False) -> Iterator[None]:
    """Call `enter` with the stream of FSDP2's allocations from there on; 0 is the computation's.

    As on CUDA (torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py): what an implicit all-gather
    allocates is `ALL_GATHER_STREAM`'s; what a reduction allocates is `REDUCE_SCATTER_STREAM`'s, from its
    output on. Its input is the computation's; with `copies_on_own_stream` it is the reduction's, as before
    pytorch's pull request 129721 of June 2024.
    """
    noticed = 1 if copies_on_own_stream else 2
    require_tried_version()
    from torch.distributed.fsdp._fully_shard import _fsdp_param_group

    module: Any = _fsdp_param_group
    gather, reduce = module.foreach_all_gather, module.foreach_reduce

    def gathered(parameters: Any, group: Any, async_op: bool, *rest: Any) -> Any:
        enter(0 if async_op else ALL_GATHER_STREAM)
        try:
            return gather(parameters, group, async_op, *rest)
        finally:
            enter(0)

    def reduced(*args: Any) -> Any:
        before, communicator, rest = args[:4], args[4], args[5:]
        try:
            return reduce(*before, _Noticed(communicator, enter, noticed), *rest)
        finally:
            enter(0)

    module.foreach_all_gather, module.foreach_reduce = gathered, reduced
    try:
        yield
    finally:
        module.foreach_all_gather, module.foreach_reduce = gather, reduce


class _Noticed:
    """A reduce-scatter that enters its stream with an allocation: 1, its input, or 2, its output."""

    def __init__(self, communicator: Any, enter: Callable[[int], None], noticed: int) -> None:
        self._communicator, self._enter, self._noticed = communicator, enter, noticed
        self._allocations = 0

    def allocate(self, *args: Any, **kwargs: Any) -> Any:
        self._allocations += 1
        if self._allocations == self._noticed:
            self._enter(REDUCE_SCATTER_STREAM)
        return self._communicator.allocate(*args, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._communicator(*args, **kwargs)


@contextmanager
def fsdp2_copies_up(is_below: Callable[[torch.Tensor], bool]) -> Iterator[None]:
    """Make an all-gather copy each shard that `is_below` the device to the device first.

    As on CUDA (torch/distributed/fsdp/_fully_shard/_fsdp_param.py, `all_gather_inputs`); a CPU makes none.
    """
    require_tried_version()
    from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam

    parameter_class: Any = FSDPParam
    original = parameter_class.all_gather_inputs

    def all_gather_inputs(parameter: Any) -> Any:
        shard = parameter._sharded_param_data
        if not is_below(shard):
            return original.fget(parameter)
        parameter._sharded_param_data = torch.empty(shard.shape, dtype=shard.dtype).copy_(shard)
        try:
            return original.fget(parameter)
        finally:
            parameter._sharded_param_data = shard

    parameter_class.all_gather_inputs = property(all_gather_inputs)
    try:
        yield
    finally:
        parameter_class.all_gather_inputs = original
