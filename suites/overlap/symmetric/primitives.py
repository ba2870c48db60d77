"""Operations on symmetric memory for Triton kernels, in the terms of OpenSHMEM and Triton-distributed.

Every rank has a heap of the same layout. `heaps` (RANKS,) int64 has the address of each rank's heap in this
process; a pointer into the own heap and a rank give the same place in that rank's heap. A signal is an int32
in the heap; one rank changes it with `notify`, another waits for a value with `wait`.

Memory order: what a rank stored before a `notify` with release is visible to whoever has waited for that
value with acquire, at system scope. Nothing else orders memory of two ranks, or of two programs of one rank.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def symm_at(pointer, heaps, rank, peer):
    """Return where `pointer`, in this rank's heap, is in the heap of `peer`."""
    offset = tl.cast(pointer, tl.int64) - tl.load(heaps + rank)
    return tl.cast(tl.load(heaps + peer) + offset, pointer.dtype)


@triton.jit
def wait(signals, index, value, faults, TIMEOUT_NS: tl.constexpr, semantic: tl.constexpr = "acquire"):
    """Wait until this rank's signal `index` is `value`.

    After TIMEOUT_NS, `faults` gets the signal, the expected value and the value seen, unless an earlier wait
    failed: then this one fails at once. The launch raises `SignalTimeout`.
    """
    patience_ns = tl.where(tl.load(faults) == 0, TIMEOUT_NS, 0)
    came = tl.atomic_poll(signals + index, value, sem=semantic, scope="sys", timeout_ns=patience_ns)
    if (not came) & (patience_ns > 0):
        tl.store(faults + 1, index)
        tl.store(faults + 2, value)
        tl.store(faults + 3, tl.atomic_load(signals + index, sem="relaxed", scope="sys"))
        tl.store(faults, 1)


@triton.jit
def notify(
    signals, index, value, heaps, rank, peer,
    operation: tl.constexpr = "set", semantic: tl.constexpr = "release",
):  # fmt: skip
    """Set the signal `index` of `peer` to `value`, or add to it, after this program's earlier stores."""
    tl.debug_barrier()  # a release covers the stores of all threads of the program
    there = symm_at(signals + index, heaps, rank, peer)
    if operation == "add":
        tl.atomic_add(there, value, sem=semantic, scope="sys")
    else:
        tl.atomic_xchg(there, value, sem=semantic, scope="sys")


@triton.jit
def copy(target, source, elements, BLOCK: tl.constexpr):
    """Copy contiguous elements."""
    for first in range(0, elements, BLOCK):
        here = first + tl.arange(0, BLOCK)
        tl.store(target + here, tl.load(source + here, mask=here < elements), mask=here < elements)


@triton.jit
def get(target, source, elements, heaps, rank, peer, BLOCK: tl.constexpr):
    """Copy contiguous elements from `source` in the heap of `peer` to `target` here."""
    copy(target, symm_at(source, heaps, rank, peer), elements, BLOCK)


@triton.jit
def put(target, source, elements, heaps, rank, peer, BLOCK: tl.constexpr):
    """Copy contiguous elements from `source` here to `target` in the heap of `peer`."""
    copy(symm_at(target, heaps, rank, peer), source, elements, BLOCK)
