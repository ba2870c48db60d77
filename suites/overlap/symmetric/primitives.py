"""Operations on symmetric memory for Triton kernels, in the terms of OpenSHMEM and Triton-distributed.

`heaps` (RANKS,) int64 has the address of each rank's heap in this process; a pointer into the own heap and a
rank give the same place in that rank's heap. A signal is an int32 in the heap. A word is an int64: data in
its low half, a flag in its high half, and it needs no signal.

Memory order: what a rank stored before a `notify` with release is visible to whoever has waited for that
value with acquire, at system scope. Nothing else orders memory of two ranks, or of two programs of one rank.
Launches of one rank follow each other: what one has read or written comes before all of the next.
"""

from __future__ import annotations

import triton
import triton.language as tl

NONE_MISSING = tl.constexpr(2**31 - 1)
NEVER = tl.constexpr(-1)  # a value that `faults` does not have
PAUSE_NS = tl.constexpr(100)
SHARE = tl.constexpr(64)  # a pause is PAUSE_NS and one SHARE-th of the wait so far


@triton.jit
def symm_at(pointer, heaps, rank, peer):
    """Return where `pointer`, in this rank's heap, is in the heap of `peer`."""
    offset = tl.cast(pointer, tl.int64) - tl.load(heaps + rank)
    return tl.cast(tl.load(heaps + peer) + offset, pointer.dtype)


@triton.jit
def wait(signals, index, value, faults, TIMEOUT_NS: tl.constexpr, semantic: tl.constexpr = "acquire"):
    """Wait until this rank's signal `index` is `value`; after TIMEOUT_NS the launch raises `SignalTimeout`.

    `faults` gets the signal, the expected value and the value seen, unless an earlier wait failed: then this
    one fails at once.
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


@triton.jit
def put_words(words, index, data, flag, mask, heaps, rank, peer):
    """Store int32 data with `flag` at `index` of the words of `peer`."""
    packed = (tl.cast(flag, tl.int64) << 32) | (tl.cast(data, tl.int64) & 0xFFFFFFFF)
    tl.atomic_store(symm_at(words, heaps, rank, peer) + index, packed, mask=mask, sem="relaxed", scope="sys")


@triton.jit
def get_words(words, index, flag, mask, faults, TIMEOUT_NS: tl.constexpr):
    """Return the int32 data at `index` (a block) of this rank's words, once each of them has `flag`.

    The time limit is that of `wait`. The pauses between attempts are polls for a value that never comes: the
    only clock that all GPUs and the interpreter have. They grow with the wait, which bounds the attempts.
    """
    limit_ns = tl.where(tl.load(faults) == 0, TIMEOUT_NS, 0)
    waited_ns = tl.full((), 0, tl.int64)
    word = tl.atomic_load(words + index, mask=mask, sem="relaxed", scope="sys")
    first = tl.min(tl.where(mask & ((word >> 32) != flag), index, NONE_MISSING), axis=0)
    while first != NONE_MISSING:
        pause_ns = PAUSE_NS + waited_ns // SHARE
        tl.atomic_poll(faults, NEVER, sem="relaxed", scope="sys", timeout_ns=pause_ns)
        waited_ns += pause_ns
        word = tl.atomic_load(words + index, mask=mask, sem="relaxed", scope="sys")
        missing = tl.min(tl.where(mask & ((word >> 32) != flag), index, NONE_MISSING), axis=0)
        if (missing != NONE_MISSING) & (waited_ns >= limit_ns):
            if limit_ns > 0:
                tl.store(faults + 1, missing)
                tl.store(faults + 2, flag)
                tl.store(faults + 3, tl.sum(tl.where(index == missing, word >> 32, 0), axis=0))
                tl.store(faults, 2)
            missing = NONE_MISSING
        first = missing
    return tl.cast(word, tl.int32)
