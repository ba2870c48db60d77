"""Record the accesses that interpreted kernels make to memory, for `memory_order`.

While `traced` is active, Triton's interpreter records every load, store and atomic of this rank's kernels,
and PyTorch every operation on the heap outside of kernels, but for NumPy and `Tensor.tolist`. Each atomic is
performed and numbered under a lock that all ranks share, so that those of all ranks have one order.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import torch
import triton
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from triton.runtime import interpreter
from triton.runtime.interpreter import GridExecutor, InterpreterBuilder, TensorHandle

from harness.instruments.triton_kernels import launch
from harness.records import Unavailable
from suites.overlap.symmetric import primitives
from suites.overlap.symmetric.heap import SymmetricHeap

HOST = -1  # the program of accesses that PyTorch makes outside of kernels

SPACE_B = 1 << 48
"""Size of a space of places: rank r's heap is space 2r, by offsets, its other memory 2r + 1, by addresses."""

POLL_EVERY_S = 50e-6  # how long a poll that failed leaves the lock to others
ENDED = 1 << 62  # stands for a number: all recording has ended, or this rank has

NOT_SHOWN = (
    *(os.path.dirname(str(package.__file__)) for package in (triton, torch)),
    *(str(module.__file__) for module in (primitives, launch)),
    __file__,
)
"""Files whose lines are not the source of an access; the line that called them is."""

SEMANTICS = {"ACQUIRE": "acquire", "RELEASE": "release", "ACQUIRE_RELEASE": "acq_rel", "RELAXED": "relaxed"}
SCOPES = {"SYSTEM": "sys", "GPU": "gpu", "CTA": "cta"}


class Access(NamedTuple):
    """One access of one thread, which is a program of a launch of a rank."""

    rank: int
    launch: int
    """The number of this rank's launches before. HOST accesses have that of the launch that follows."""
    program: int
    kind: str
    """load, store, poll (one that succeeded), exchange, or update: any other atomic that reads and writes."""
    semantic: str
    """plain, or of an atomic: relaxed, acquire, release or acq_rel."""
    scope: str
    ranges: list[tuple[int, int]]
    """The places of the bytes: the first, and the one behind the last. An atomic has one range."""
    number: int
    """The position among the atomics of all ranks; 0 for a plain access."""
    value: int
    """The bits that an atomic leaves there."""
    source: str
    """The line of the kernel, as file:line."""


@contextmanager
def traced(heap: SymmetricHeap, shared: Path) -> Iterator[list[Access]]:
    """Record this rank's accesses. `shared` is the path of a file that all ranks share; it may not exist yet.

    The table of heaps, which nobody writes, is left out. Once a wait has failed, all ranks end recording and
    waiting. A wait fails at its time limit, or once all ranks wait or have left this context. Raises
    `Unavailable` where Triton's interpreter has not all of the operations that are recorded.
    """
    for name in _RECORDERS:
        if not hasattr(InterpreterBuilder, name):
            raise Unavailable(
                f"recording memory accesses needs {name} of the interpreter of Triton 3.9; this is "
                f"{triton.__version__}"
            )
    trace = _Trace(heap, shared)
    given = {name: getattr(InterpreterBuilder, name) for name in _RECORDERS}
    execute = GridExecutor.__call__
    for name, recorder in _RECORDERS.items():
        setattr(InterpreterBuilder, name, recorder(trace, given[name]))
    GridExecutor.__call__ = trace.launching(execute)
    try:
        with _HostAccesses(trace):
            yield trace.accesses
    finally:
        GridExecutor.__call__ = execute
        for name, function in given.items():
            setattr(InterpreterBuilder, name, function)
        trace.close()


class _Trace:
    """What one rank has recorded, and what it is doing."""

    def __init__(self, heap: SymmetricHeap, shared: Path) -> None:
        self.accesses: list[Access] = []
        self.in_kernel = self.in_atomic = self.ended = False
        self.rank, self._launches = heap.rank, 0
        self._lock = os.open(shared, os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(self._lock, 8 * (1 + heap.ranks))
        words = numpy.memmap(shared, dtype=numpy.int64, mode="r+")
        self._last, self.waiting = words[:1], words[1:]  # the number that each rank waits for
        self._heaps, self._heap_B = heap._heaps.addresses.numpy(), heap._heaps.own.numel()
        self._table, self._faults = (
            range(one.data_ptr(), one.data_ptr() + one.nbytes)
            for one in (heap._heaps.addresses, heap._faults)
        )

    def launching(self, given: Any) -> Any:
        def execute(grid: Any, *arguments: Any, **options: Any) -> Any:
            self.in_kernel = True
            try:
                return given(grid, *arguments, **options)
            finally:
                self.in_kernel, self._launches = False, self._launches + 1

        return execute

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of all ranks' atomics."""
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.in_atomic = True
        try:
            self.ended = self.ended or int(self._last[0]) == ENDED
            yield
        finally:
            self.in_atomic = False
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def is_stuck(self) -> bool:
        """Report, locked, that this rank waits; return whether no rank can perform another atomic."""
        self.waiting[self.rank] = self._last[0] + 1
        return all(one in (self._last[0] + 1, ENDED) for one in self.waiting)

    def close(self) -> None:
        """Report that this rank performs no more atomics."""
        with self.locked():
            self.waiting[self.rank] = ENDED
        os.close(self._lock)

    def plain(self, kind: str, addresses: Any, size_B: int) -> None:
        """Record a load or a store of elements of `size_B` bytes."""
        if len(addresses) == 0 or int(addresses[0]) in self._table:
            return
        if int(addresses[0]) in self._faults:
            if kind == "store":
                with self.locked():
                    self._last[0], self.ended = ENDED, True
            return
        places = numpy.unique(self._places(addresses))
        gaps = numpy.flatnonzero(numpy.diff(places) > size_B)
        begins = places[numpy.r_[0, gaps + 1]].tolist()
        ends = (places[numpy.r_[gaps, len(places) - 1]] + size_B).tolist()
        self._record(kind, "plain", "", list(zip(begins, ends, strict=True)), 0, 0)

    def host(self, kind: str, tensor: Tensor) -> None:
        """Record a load or a store of a tensor, if it is in the heap."""
        if not self._heaps[0] <= tensor.data_ptr() < self._heaps[-1] + self._heap_B:
            return
        elements = numpy.zeros(1, dtype=numpy.int64)
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
            elements = (elements[:, None] + numpy.arange(size) * stride).ravel()
        self.plain(kind, tensor.data_ptr() + elements * tensor.itemsize, tensor.itemsize)

    def atomic(self, kinds: Sequence[str], addresses: Any, dtype: Any, semantic: Any, scope: Any) -> None:
        """Record, locked, an atomic of each address, once it has been performed."""
        if self.ended or not len(addresses):
            return
        self._last[0] += 1
        every = numpy.ones(addresses.shape, dtype=bool)
        values = interpreter._interpreter.load(addresses, every, numpy.zeros(addresses.shape, dtype), dtype)
        for kind, place, value in zip(kinds, self._places(addresses).tolist(), values, strict=True):
            bits = int.from_bytes(value.tobytes(), sys.byteorder)
            ranges = [(place, place + dtype.itemsize)]
            self._record(kind, SEMANTICS[semantic.name], SCOPES[scope.name], ranges, int(self._last[0]), bits)

    def _places(self, addresses: Any) -> Any:
        """Return places, which are the same in every process, for this process's addresses."""
        addresses = addresses.astype(numpy.int64)
        owner = numpy.searchsorted(self._heaps, addresses, side="right") - 1
        offset = addresses - self._heaps[owner]
        in_heap = (owner >= 0) & (offset < self._heap_B)
        return numpy.where(in_heap, 2 * owner * SPACE_B + offset, (2 * self.rank + 1) * SPACE_B + addresses)

    def _record(
        self, kind: str, semantic: str, scope: str, ranges: list[tuple[int, int]], number: int, value: int
    ) -> None:
        if self.ended:
            return
        program = HOST
        if self.in_kernel:
            builder = interpreter.interpreter_builder
            program = int(numpy.ravel_multi_index(builder.grid_idx, builder.grid_dim))
        thread = (self.rank, self._launches, program)
        self.accesses.append(Access(*thread, kind, semantic, scope, ranges, number, value, _source()))


def _source() -> str:
    frame: Any = sys._getframe(1)
    while frame.f_code.co_filename.startswith(NOT_SHOWN) and frame.f_back:
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


def _element(pointers: Any) -> Any:
    return interpreter._get_np_dtype(pointers.get_element_ty())


def _active(pointers: Any, mask: Any) -> Any:
    return pointers.data[numpy.broadcast_to(mask.data, pointers.data.shape)]


def _plain(kind: str) -> Callable[[_Trace, Any], Any]:
    mask = {"load": 0, "store": 1}[kind]  # its place behind the pointers

    def recorder(trace: _Trace, given: Any) -> Any:
        def perform(builder: Any, pointers: Any, *rest: Any) -> Any:
            if not trace.in_atomic:
                trace.plain(kind, _active(pointers, rest[mask]), _element(pointers).itemsize)
            return given(builder, pointers, *rest)

        return perform

    return recorder


def _atomic(kind: str) -> Callable[[_Trace, Any], Any]:
    def recorder(trace: _Trace, given: Any) -> Any:
        def perform(builder: Any, *operands: Any) -> Any:
            *others, mask, semantic, scope = operands
            exchange = kind == "update" and others[0].name == "XCHG"
            pointers = others[1 if kind == "update" else 0]
            with trace.locked():
                result = given(builder, *operands)
                active = _active(pointers, mask)
                kinds = ["exchange" if exchange else kind] * len(active)
                trace.atomic(kinds, active, _element(pointers), semantic, scope)
            return result

        return perform

    return recorder


def _atomic_cas(trace: _Trace, given: Any) -> Any:
    def compare_and_swap(builder: Any, pointers: Any, expected: Any, value: Any, *order: Any) -> Any:
        with trace.locked():
            result = given(builder, pointers, expected, value, *order)
            swapped = numpy.broadcast_to(result.data == expected.data, pointers.data.shape)
            kinds = ["update" if one else "load" for one in swapped.ravel()]
            semantic, scope = order
            trace.atomic(kinds, pointers.data.ravel(), _element(pointers), semantic, scope)
        return result

    return compare_and_swap


def _atomic_poll(trace: _Trace, given: Any) -> Any:
    """Try every element again until it has been seen with its value, as the interpreter does; but locked."""

    def poll(builder: Any, pointers: Any, expected: Any, timeout_ns: Any, *order: Any) -> Any:
        at_once = TensorHandle(numpy.zeros(1, dtype=numpy.uint64), interpreter.tl.uint64)
        came = numpy.zeros(pointers.data.size, dtype=bool)
        begin_ns, is_late = time.perf_counter_ns(), False
        while not came.all() and not is_late:
            is_late = timeout_ns is not None and time.perf_counter_ns() - begin_ns >= timeout_ns.data.item()
            addresses, values = (one.data.ravel()[~came] for one in (pointers, expected))
            tried = TensorHandle(addresses, pointers.dtype), TensorHandle(values, expected.dtype)
            with trace.locked():
                found = given(builder, *tried, at_once, *order).data
                if found.any():
                    trace.atomic(["poll"] * int(found.sum()), addresses[found], _element(pointers), *order)
                elif timeout_ns is not None:
                    is_late = is_late or trace.ended or trace.is_stuck()
            came[~came] = found
            if not found.any() and not is_late:
                time.sleep(POLL_EVERY_S)
        trace.waiting[trace.rank] = 0
        return TensorHandle(came.reshape(pointers.data.shape), interpreter.tl.int1)

    return poll


_RECORDERS: dict[str, Callable[[_Trace, Any], Any]] = {
    "create_masked_load": _plain("load"),
    "create_masked_store": _plain("store"),
    "create_atomic_load": _atomic("load"),
    "create_atomic_store": _atomic("store"),
    "create_atomic_rmw": _atomic("update"),
    "create_atomic_cas": _atomic_cas,
    "create_atomic_poll": _atomic_poll,
}
"""What performs and records each operation; the interpreter's other loads and stores are made of these."""


class _HostAccesses(TorchDispatchMode):
    """Records what PyTorch's operations read and write of the symmetric heap, outside of kernels."""

    def __init__(self, trace: _Trace) -> None:
        super().__init__()
        self._trace = trace

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if not self._trace.in_kernel and not any(_is_view(one) for one in function._schema.returns):
            given = function._schema.arguments
            for parameter, value in zip(given, args, strict=False):
                self._record(parameter, value)
            for parameter in given[len(args) :]:
                self._record(parameter, named.get(parameter.name))
        return function(*args, **named)

    def _record(self, parameter: Any, value: Any) -> None:
        written = parameter.alias_info is not None and parameter.alias_info.is_write
        for tensor in tree_leaves(value):
            if isinstance(tensor, Tensor) and tensor.device.type == "cpu" and tensor.numel():
                self._trace.host("store" if written else "load", tensor)


def _is_view(returned: Any) -> bool:
    return returned.alias_info is not None and not returned.alias_info.is_write
