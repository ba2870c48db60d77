"""Follow every storage of a run on fake tensors and log each allocation and release, for dry runs.

Nothing is allocated: the log has the allocations that a real run would request, operation by operation.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from harness.instruments import torch_internals
from harness.instruments.memory.dry_run.calling_line import CallingLine
from harness.instruments.memory.memory_timeline import SET_UP, Ledger, MemoryEvent, OpSite
from harness.instruments.memory.workspaces import call_of, takes_more


class Temporaries(NamedTuple):
    """What a stretch of code allocates and releases again, so that it can be logged without running it."""

    storages: int
    events: list[tuple[int, int, OpSite, bool]]  # storage, bytes, site, whether its line is not the caller's


def temporaries_of(events: Sequence[MemoryEvent], before: int, line: str) -> Temporaries | None:
    """Return a stretch's events, its storages numbered from 0; None where it touches or keeps others."""
    held: dict[int, int] = {}
    for one in events:
        held[one.storage] = held.get(one.storage, 0) + one.delta_B
    if any(number < before for number in held) or any(held.values()):
        return None
    kept = [one for one in events if one.delta_B]
    each = [(one.storage - before, one.delta_B, one.place, one.place.line != line) for one in kept]
    return Temporaries(1 + max(held, default=before - 1) - before, each)


COLLECTIVE_NAMESPACES = frozenset({"c10d", "_c10d_functional", "c10d_functional", "fsdp"})

BUFFERS: dict[tuple[str, str], int] = {
    ("fsdp", "all_gather_copy_in"): 1,
    ("fsdp", "split_with_sizes_copy"): -1,
    ("fsdp", "chunk_cat"): -1,
    **{("c10d", name): 0 for name in ("allreduce_", "reduce_", "broadcast_", "alltoall_base_", "recv_")},
    **{
        ("c10d", f"{name}_"): 0
        for name in ("_allgather_base", "allgather_into_tensor_coalesced", "allgather")
    },
    **{("c10d", f"{name}_"): 1 for name in ("_reduce_scatter_base", "reduce_scatter_tensor_coalesced")},
    ("c10d", "reduce_scatter_"): 1,
}
"""Index of the buffer argument, keywords last: gathered or received into, or reduced from.

Buffers are made by plain operations (`empty`), so only collective operations show what they are for. Gathered
parameters are among them (torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py).
"""

FAN_IN = "aten::add.Tensor"

SCATTERED = {
    "aten::index_put": "index",  # index_backward, FunctionsManual.cpp
    "aten::scatter_add": "gather",  # gather_backward, TensorAdvancedIndexing.cpp
    "aten::index_add": "indexselect",  # index_select_backward_symint, the same
}
"""Operations into zeros that a derivative has just made, and the operation whose derivative uses them."""


Workspace = Callable[[Any, Sequence[Any], Any], int]
"""(operation, its arguments with keywords last, its result) to its temporary bytes beyond the result.

They are released before it ends."""


class _InPlace(NamedTuple):
    """An operation whose result takes its first argument's storage in a real run, if that goes now."""

    written: int  # storages by address
    result: int
    event: int  # the result's allocation


class StorageLog(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Logs storages as they are made, resized and released; entered over a fake tensor mode.

    `ask_host`: the temporary memory of matrix products and attention is measured on this host (`workspaces`).
    `line`: returns the line of the model's code that is running. A storage gets its kind when it is known
    (`label`), for its entire life; what the forward pass makes and still keeps when it ends is an activation.
    What is made inside `below` belongs to the memory tier below the device, and is not logged.
    `computes_below`: nor are the results of operations that have arguments of that tier alone.
    """

    supports_higher_order_operators = True

    def __init__(
        self,
        workspace: Workspace = lambda *_: 0,
        ask_host: bool = False,
        line: Callable[[], str] | None = None,
        computes_below: bool = False,
    ):
        super().__init__()  # type: ignore[no-untyped-call]
        self.ledger = Ledger()
        self._alive: dict[int, tuple[weakref.ref[Any], int, int]] = {}  # address: (reference, number, bytes)
        self._made: dict[int, OpSite] = {}  # by number, where the storages that live were made
        self._workspace, self._ask_host, self._line = workspace, ask_host, line or CallingLine()
        self._fake_mode: Any = None
        self._phase = SET_UP
        self._forward = False
        self._fresh: set[int] = set()  # made in the current forward pass, still alive
        self._place = OpSite(SET_UP, "", ())
        self._in_place: _InPlace | None = None
        self._below: dict[int, weakref.ref[Any]] = {}  # storages by address
        self._computes_below, self._making_below = computes_below, False
        self._repeated: dict[Hashable, Temporaries | None] = {}

    # -- called by the dry run

    def enter_phase(self, phase: str) -> None:
        """Begin `phase`; a phase whose name begins with "forward" makes activations."""
        self._end_forward()
        self._phase = phase
        self._place = OpSite(phase, "", ())

    def label(self, tensor: torch.Tensor, kind: str) -> None:
        """Set the kind of the tensor's storage, from first byte to last; an unknown storage is logged."""
        for inner in torch_internals.inner_tensors(tensor):
            number = self._see(inner)
            if number is not None:
                self.ledger.kinds[number] = kind
                self._fresh.discard(number)

    def hold(self, tensor: torch.Tensor) -> None:
        """Log a tensor that was made outside of any operation."""
        self._see(tensor)

    @contextmanager
    def below(self) -> Iterator[None]:
        """Put what operations make inside the block on the tier below the device."""
        before, self._making_below = self._making_below, True
        try:
            yield
        finally:
            self._making_below = before

    def is_below(self, tensor: torch.Tensor) -> bool:
        """Return whether the tensor's storage is on the tier below the device."""
        return bool(self._below) and self._key(tensor) in self._below

    def reserve(self, size_B: int) -> None:
        """Log bytes that a library allocates and keeps."""
        self.ledger.enter(self.ledger.open("temporaries"), size_B, self._place)

    def enter_stream(self, stream: int) -> None:
        """Begin allocations of another of the device's streams."""
        self.ledger.stream = stream

    def resized(self, storage: torch.UntypedStorage) -> None:
        """Log that a known storage has a new size: one that grows is made anew by its own operation."""
        key, size_B = torch_internals.storage_key(storage), storage.nbytes()
        if key in self._alive:
            reference, number, before_B = self._alive[key]
            self._alive[key] = (reference, number, size_B)
            grown = self._made[number]._replace(phase=self._phase)
            self.ledger.enter(number, size_B - before_B, grown if size_B > before_B else self._place)

    def repeat(self, key: Hashable, run: Callable[[], None]) -> None:
        """Log what `run` allocates and releases; for a known key without running it, if it keeps none."""
        line = self._line()
        caller = line.partition(":")[0]  # in a backward pass it is the code of `run` itself
        key = (key, self._making_below, caller)
        found = None if self._ask_host else self._repeated.get(key)
        if found is None:
            first, before = len(self.ledger.events), len(self.ledger.kinds)
            run()
            if key not in self._repeated:
                self._repeated[key] = temporaries_of(self.ledger.events[first:], before, line)
            return
        self._in_place = None
        base = len(self.ledger.kinds)
        for _ in range(found.storages):
            self.ledger.open("temporaries")
        for storage, delta_B, place, own_line in found.events:
            place = place._replace(phase=self._phase, line=place.line if own_line else line)
            self.ledger.enter(base + storage, delta_B, place)

    # -- called by torch

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: torch's wrapper that keeps Dynamo out costs each operation time."""
        return False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Return True: torch.compile compiles under this mode, which sees what the compiled code runs."""
        return True

    def __enter__(self) -> StorageLog:
        self._fake_mode = torch_internals.active_fake_mode()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Run the operation, then log the storages of its results."""
        if any(torch_internals.is_distributed_tensor(kind) for kind in types):
            return NotImplemented  # its operations on local tensors follow
        if func is torch.ops.prim.device.default:
            return torch_internals.device_attribute(args[0])  # read as often as all else together
        if func is torch.ops._c10d_functional.wait_tensor.default:
            return args[0]  # as in a real run; its fake version would make a new tensor
        if torch_internals.is_higher_order(func):
            with self:
                return torch_internals.run_with_random_state(func, args, kwargs or {})
        self._in_place = None
        result = func(*args, **(kwargs or {}))
        if torch_internals.active_fake_mode() is self._fake_mode:
            event = len(self.ledger.events)
            self._log_operation(func, (*args, *(kwargs or {}).values()), result)
            if writes_in_place(func, args):
                self._in_place = _InPlace(self._key(args[0]), self._key(result), event)
            if self._ask_host and takes_more(func, args):
                self.ledger.enter_call(call_of(func, args, kwargs), self._place)
        return result

    def _log_operation(self, func: Any, args: Sequence[Any], result: Any) -> None:
        forward = self._phase.startswith("forward") or (
            self._phase.startswith("backward") and torch.is_grad_enabled()  # recomputation
        )
        if self._forward and not forward:
            self._end_forward()
        self._forward = forward
        made = _tensors(result)
        shape = tuple(made[0].shape) if made else ()
        self._place = OpSite(self._phase, str(func), shape, self._line())
        taken = _tensors(args) if self._computes_below and self._below else []
        if taken and all(map(self.is_below, taken)):
            with self.below():
                self._see_all(made)
            return
        self._see_all(made, "communication" if func.namespace in COLLECTIVE_NAMESPACES else None)
        for tensor, role in collective_roles(func, args):
            number = self._see(tensor)
            if number is not None and self.ledger.kinds[number] == "temporaries":
                self.label(tensor, role)
        self.ledger.record_transient(self._workspace(func, args, result), self._place)

    # -- storages

    def _see_all(self, tensors: Iterable[torch.Tensor], kind: str | None = None) -> None:
        for tensor in tensors:
            for inner in torch_internals.inner_tensors(tensor):
                self._see(inner, kind)

    def _see(self, tensor: torch.Tensor, kind: str | None = None) -> int | None:
        """Return the number of the tensor's storage, logged if new; None if it has none on the device."""
        if torch_internals.device_of(tensor).type == "meta":
            return None  # deepspeed keeps shapes so
        try:
            storage = tensor.untyped_storage()
        except NotImplementedError:
            return None
        key = torch_internals.storage_key(storage)
        if key in self._alive:
            return self._alive[key][1]
        if key in self._below:
            return None
        if self._making_below:
            self._below[key] = weakref.ref(storage, lambda _: self._below.pop(key))
            return None
        number = self.ledger.open(kind or "temporaries")
        if self._forward and kind is None:
            self._fresh.add(number)
        size_B = storage.nbytes()
        self._alive[key] = (weakref.ref(storage, lambda _: self._release(key)), number, size_B)
        self._made[number] = self._place
        self.ledger.enter(number, size_B, self._place)
        return number

    @staticmethod
    def _key(tensor: torch.Tensor) -> int:
        return torch_internals.storage_key(tensor.untyped_storage())

    def _release(self, key: int) -> None:
        _, number, size_B = self._alive.pop(key)
        if not self._taken_over(key, number, size_B):
            self._fresh.discard(number)
            del self._made[number]
            self.ledger.enter(number, -size_B, self._place)

    def _taken_over(self, key: int, number: int, size_B: int) -> bool:
        """Return whether the storage lives on as the result just logged, which is withdrawn."""
        pending = self._in_place
        if pending is None or pending.written != key or pending.result not in self._alive:
            return False
        self._in_place = None
        reference, own, _ = self._alive[pending.result]
        self._alive[pending.result] = (reference, number, size_B)
        del self._made[own]
        self.ledger.withdraw(pending.event)
        return True

    def _end_forward(self) -> None:
        for number in self._fresh:
            self.ledger.kinds[number] = "activations"
        self._fresh.clear()
        self._forward = False


@contextmanager
def logged(log: StorageLog, random_states: bool = True) -> Iterator[StorageLog]:
    """Run the block on fake tensors with `log` over them; `random_states`: also the CPU generator's."""
    states = _random_states(log) if random_states else nullcontext()
    with torch_internals.fake_tensor_mode(), _resizes(log), states, log:
        _ACTIVE.append(log)
        try:
            yield log
        finally:
            _ACTIVE.pop()


_ACTIVE: list[StorageLog] = []  # logs that are entered, the innermost last


def repeatable(key: Hashable, run: Callable[[], None]) -> None:
    """Run what keeps nothing, or log it again by a key of all its sizes; not in compiled code."""
    if _ACTIVE and not torch.compiler.is_compiling():
        _ACTIVE[-1].repeat(key, run)
    else:
        run()


def _resizes(log: StorageLog) -> AbstractContextManager[Any]:
    """Log `UntypedStorage.resize_`, which is no operation; FSDP2 frees and restores storages with it."""
    original = torch.UntypedStorage.resize_

    def resize_(storage: torch.UntypedStorage, size: int) -> Any:
        result = original(storage, size)
        log.resized(storage)
        return result

    return patch.object(torch.UntypedStorage, "resize_", resize_)


def _random_states(log: StorageLog) -> AbstractContextManager[Any]:
    """Log the CPU generator's state (5,056 bytes), made by no operation; checkpoints keep one per block."""
    original = torch.get_rng_state

    def get_rng_state() -> torch.Tensor:
        state = original()
        log.hold(state)
        return state

    return patch.object(torch, "get_rng_state", get_rng_state)


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [one for one in tree_leaves(tree) if isinstance(one, torch.Tensor)]


def collective_roles(operation: Any, arguments: Sequence[Any]) -> Iterator[tuple[torch.Tensor, str]]:
    """Return a collective's buffers with their kind; FSDP2's unreduced gradients enter `chunk_cat`."""
    name = (operation.namespace, operation._opname)
    if name == ("fsdp", "chunk_cat"):
        yield from ((tensor, "gradients") for tensor in arguments[0])
    if name in BUFFERS:
        yield from ((tensor, "communication") for tensor in _tensors(arguments[BUFFERS[name]]))


def writes_in_place(operation: Any, args: Sequence[Any]) -> bool:
    """Return whether a real run writes the operation's result over its first argument.

    Under any dispatch mode `isTensorSubclassLike` is true of every tensor (ATen/TensorSubclassLikeUtils.h),
    and autograd writes into none. A real run does if nothing else uses that argument. The sum of two
    gradients: `accumulate` in torch/csrc/autograd/input_buffer.cpp adds in place if gradients are not
    recorded and the tensor is dense, without overlap, and owned by the buffer alone, with its storage; a view
    (such as the gradient of a linear layer's weight) shares its storage. The caller sees the last when the
    storage goes before the next operation. A derivative in C++ that itself adds out of place to its own
    tensor is not distinguished.
    """
    name = operation.name()
    derivative = SCATTERED.get(name)
    if (derivative is None and name != FAN_IN) or torch.is_grad_enabled() or not args[0].numel():
        return False
    if not torch_internals.called_by_autograd():
        return False  # by Python; or by DTensor, which is a subclass in a real run too
    if derivative is not None:
        return torch_internals.derivative_of() == derivative
    return isinstance(args[1], torch.Tensor) and not args[0]._is_view() and is_dense(args[0])


def is_dense(tensor: torch.Tensor) -> bool:
    """Return whether the tensor's elements fill a stretch of memory, none twice, in any order of axes."""
    filled = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != filled:
            return False
        filled *= size
    return True
