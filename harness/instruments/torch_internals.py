"""The private parts of torch that the harness uses, in one place and only for tested versions."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch

from harness.records import Unavailable

TRIED = ([2, 11], [2, 14])  # from, up to and not with


def require_tried_version() -> None:
    """Raise `Unavailable` for a torch version whose private parts are not tested."""
    first, last = TRIED
    if not first <= [int(part) for part in torch.__version__.split(".")[:2]] < last:
        raise Unavailable(
            f"torch {torch.__version__}: fake tensors are reached through private parts of torch, tried for "
            f">= {first[0]}.{first[1]}, < {last[0]}.{last[1]} (harness/instruments/torch_internals.py)"
        )


def fake_tensor_mode() -> Any:
    """Return a new `FakeTensorMode`: tensors with shape, type and storage size, without memory."""
    require_tried_version()
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode()


def active_fake_mode() -> Any:
    """Return the innermost active `FakeTensorMode`, or None; DTensor enters its own to find shapes."""
    from torch._guards import active_fake_mode

    return active_fake_mode()


def is_higher_order(operation: Any) -> bool:
    """Return whether the operation takes another operation as an argument."""
    return isinstance(operation, torch._ops.HigherOrderOperator)


def run_with_random_state(operation: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run a compiled graph's random operation, with the random states that it takes on the CPU.

    The forward pass also returns the state, for the recomputation; that one keeps the state from before it.
    """
    name = operation.name()
    if name == "run_and_save_rng_state":
        return torch.get_rng_state(), args[0](*args[1:], **kwargs)
    if name == "run_with_rng_state":
        before = torch.get_rng_state()
        result = args[1](*args[2:], **kwargs)
        del before
        return result
    raise Unavailable(f"compiled code calls {name}, which fake tensors cannot show")


def last_autograd_node() -> int:
    """Return the sequence number of the autograd node that was made last, by the operation that runs now."""
    return torch.autograd._get_sequence_nr() - 1  # type: ignore[attr-defined]


def running_autograd_node() -> int:
    """Return the sequence number of the node that autograd runs now; below zero outside a backward pass."""
    node = torch._C._current_autograd_node()
    return -1 if node is None else node._sequence_nr()


def is_fake(tensor: torch.Tensor) -> bool:
    """Return whether the tensor has no memory."""
    from torch._subclasses.fake_tensor import FakeTensor

    return any(isinstance(inner, FakeTensor) for inner in inner_tensors(tensor))


def device_of(tensor: torch.Tensor) -> torch.device:
    """Return the tensor's device; `Tensor.device` of a fake one is an operation of its own."""
    from torch._subclasses.fake_tensor import FakeTensor

    return tensor.fake_device if isinstance(tensor, FakeTensor) else tensor.device


def device_attribute(tensor: torch.Tensor) -> torch.device:
    """Return what the operation `prim.device` does, without dispatching it."""
    from torch._subclasses.fake_tensor import FakeTensor

    if type(tensor) is not FakeTensor:
        return torch.ops.prim.device.default(tensor)  # type: ignore[no-any-return]
    return META if tensor.fake_mode.in_kernel_invocation else tensor.fake_device


META = torch.device("meta")


def errors_for_want_of_values() -> tuple[type[Exception], ...]:
    """Return the errors that an operation on fake tensors raises where its result depends on values."""
    from torch._subclasses import fake_tensor

    return (
        fake_tensor.DataDependentOutputException,
        fake_tensor.DynamicOutputShapeException,
        fake_tensor.UnsupportedOperatorException,
    )


def is_distributed_tensor(kind: type) -> bool:
    """Return whether `kind` is DTensor, whose operations are seen again on its local tensors."""
    return kind.__name__ == "DTensor" and kind.__module__.startswith("torch.distributed")


def inner_tensors(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the tensors with a wrapper subclass's data; the tensor itself where it is not one."""
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass

    if not is_traceable_wrapper_subclass(tensor):
        return [tensor]
    names, _ = tensor.__tensor_flatten__()
    attributes = [getattr(tensor, name) for name in names]  # DTensor's mesh among them
    return [one for inner in attributes if isinstance(inner, torch.Tensor) for one in inner_tensors(inner)]


def compilations_from_cache() -> int:
    """Return how many graphs torch.compile has taken from its disk cache so far, in this process."""
    require_tried_version()
    from torch._dynamo.utils import counters

    hits = counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"]
    return int(hits)


def fake_store() -> Any:
    """Return the store of a process group that sends nothing; importing it registers the backend "fake"."""
    require_tried_version()
    from torch.testing._internal.distributed.fake_pg import FakeStore

    return FakeStore()


def distributed_like(tensor: Any, local: torch.Tensor) -> Any:
    """Return a DTensor as `tensor` with `local` as its part, which `from_local` would move to the device."""
    return type(tensor)(local, tensor._spec, requires_grad=False)


def no_modes() -> AbstractContextManager[Any]:
    """Disable dispatch modes inside the block, so that tensors are real."""
    from torch.utils._python_dispatch import _disable_current_modes

    return _disable_current_modes()


def unseen_propagation() -> AbstractContextManager[Any]:
    """Hide DTensor's shape propagation, which takes no memory in a real run, from modes inside the block."""
    from torch.distributed.tensor._sharding_prop import ShardingPropagator

    name = "_propagate_tensor_meta_non_cached"
    return patch.object(ShardingPropagator, name, _without_modes(getattr(ShardingPropagator, name)))


def _without_modes(function: Callable[..., Any]) -> Callable[..., Any]:
    def run(*arguments: Any) -> Any:
        with no_modes():
            return function(*arguments)

    return run


@contextmanager
def own_sharding_cache() -> Iterator[None]:
    """Let DTensor use no cached operation of another process group inside the block, and leave none behind.

    Meshes of one shape are equal to it: of another rank, and of an earlier group, whose dimensions may have
    had other names. A real run has one group and one rank to a process.
    """
    clear_sharding_cache()
    try:
        yield
    finally:
        clear_sharding_cache()


def clear_sharding_cache() -> None:
    """Do what `torch.distributed.tensor.debug._clear_sharding_prop_cache` does, which loads the compiler."""
    if "torch.distributed.tensor._api" in sys.modules:
        from torch.distributed.tensor import DTensor

        propagator: Any = DTensor._op_dispatcher.sharding_propagator
        propagator.propagate_op_sharding.cache_clear()
        torch._C._clear_DTensor_sharding_propagator_cache()


@dataclass(frozen=True)
class ChunksWhenAsked:
    """The result of `torch.chunk`, each chunk made on access; empty ones beyond the last."""

    tensor: torch.Tensor
    chunks: int
    dim: int

    def __getitem__(self, index: int) -> torch.Tensor:
        length = -(-self.tensor.shape[self.dim] // self.chunks)
        left = self.tensor.shape[self.dim] - index * length
        if left <= 0:
            return self.tensor.new_empty(0)
        return self.tensor.narrow(self.dim, index * length, min(length, left))


def own_chunks_alone() -> AbstractContextManager[Any]:
    """Let FSDP2 cut only its own chunk from each parameter inside the block. This halves a dry run's time."""
    from torch.distributed.fsdp._fully_shard import _fsdp_param

    return patch.object(_fsdp_param, "_chunk_with_empty", ChunksWhenAsked)


@contextmanager
def real_fsdp2_meshes() -> Iterator[None]:
    """Let FSDP2 make meshes to reshard to and joined with tensor parallelism's from real tensors inside."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp._fully_shard import _fully_shard

    name = "_get_post_forward_mesh_info"
    of_post_forward = _without_modes(getattr(_fully_shard, name))
    joined = staticmethod(_without_modes(DeviceMesh._concatenate))
    with patch.object(_fully_shard, name, of_post_forward), patch.object(DeviceMesh, "_concatenate", joined):
        yield


def allocated_by_size() -> AbstractContextManager[Any]:
    """Let FSDP1 take a storage with bytes for allocated inside the block; a fake one has the address 0."""
    from torch.distributed.fsdp import _flat_param

    return patch.object(_flat_param, "_data_ptr_allocated", lambda one: one.untyped_storage().size() > 0)


def results_of_fake_works() -> AbstractContextManager[Any]:
    """Let asynchronous all-reduces over a fake group have the results that DDP's hooks read, inside."""
    original = torch.distributed.all_reduce

    def all_reduce(tensor: torch.Tensor, *arguments: Any, **named: Any) -> Any:
        work = original(tensor, *arguments, **named)
        return None if work is None else DoneWork(tensor)

    return patch.object(torch.distributed, "all_reduce", all_reduce)


class DoneWork:
    """A collective that is done, with its result; or a send that is over, with what was sent."""

    def __init__(self, tensor: torch.Tensor):
        self._tensor = tensor

    def wait(self) -> bool:
        """Return at once."""
        return True

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """Return a completed future of the reduced tensors."""
        devices: Any = None if self._tensor.device.type == "cpu" else [self._tensor.device]
        future = torch.futures.Future[list[torch.Tensor]](devices=devices)
        future.set_result([self._tensor])
        return future


def has_pipelining() -> bool:
    """Return whether torch's pipelining is the one that `take_shapes_as_given` is for."""
    from torch.distributed.pipelining import _utils, schedules

    return hasattr(_utils, "InferenceMode") and hasattr(schedules._PipelineSchedule, "_warmup_p2p")


def take_shapes_as_given(schedule: Any) -> None:
    """Let a pipeline's schedule use its stages' shapes; else ranks vote, by values fake tensors lack."""
    from torch.distributed.pipelining._utils import InferenceMode

    def warm_up(stages: Any, *unused: bool) -> None:
        for stage in stages:
            stage._inference_mode = InferenceMode.STATIC

    schedule._warmup_p2p = warm_up


def sends_kept() -> AbstractContextManager[Any]:
    """Let a pipeline's schedule keep what it sends as long as the handle of the send, as gloo does.

    The handles of a fake process group keep nothing. NCCL releases a tensor soon after it was sent.
    """
    schedules: Any = sys.modules.get("torch.distributed.pipelining.schedules")
    if schedules is None:
        return nullcontext()
    original = schedules._batch_p2p

    def kept(operations: Any, desc: str | None = None) -> Any:
        sent = [DoneWork(one.tensor) for one in operations if one.op is torch.distributed.isend]
        return [*original(operations, desc), *sent]

    return patch.object(schedules, "_batch_p2p", kept)


def over_storage(
    storage: torch.UntypedStorage,
    dtype: torch.dtype,
    device: torch.device,
    offset: int,
    shape: Sequence[int],
    stride: Sequence[int],
) -> torch.Tensor:
    """Return a tensor over a storage, offset in elements; fake tensors' cache would keep a `set_` it sees."""
    empty = torch.empty(0, dtype=dtype, device=device)
    with torch._C._DisableTorchDispatch():
        return empty.set_(storage, offset, tuple(shape), tuple(stride))


def storage_key(storage: torch.UntypedStorage) -> int:
    """Return the address of a storage's C++ object: equal for every Python object that refers to it."""
    return int(storage._cdata)


def called_by_autograd() -> bool:
    """Return whether the calling dispatch mode was called by the C++ backward pass without Python in between.

    The frames nearer than the engine's are modes' own (the harness's and torch's wrappers of them).
    """
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_mode_s(frame.f_code.co_filename):
        frame = frame.f_back
    return frame.f_code.co_name == "_engine_run_backward"


def _is_mode_s(file: str) -> bool:
    return file.endswith(("/memory/dry_run/fake_tensors.py", __file__, "torch/_compile.py")) or (
        "/torch/_dynamo/" in file
    )


def derivative_of() -> str:
    """Return the operation whose derivative autograd computes now (IndexBackward0: "index"); "" for none."""
    node = torch._C._current_autograd_node()
    return node.name().partition("Backward")[0].lower() if node is not None else ""


def cpu_kernel(operation: str) -> Callable[..., Any]:
    """Return torch's CPU kernel of `operation`, such as "aten::mm"; it takes dispatch keys and arguments."""
    require_tried_version()
    kernel: Any = torch.library.get_kernel(operation, "CPU")
    return kernel.call_boxed  # type: ignore[no-any-return]


@contextmanager
def cpu_kernels(kernels: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Make torch run these for the named "aten" operations on CPU tensors inside the block."""
    require_tried_version()
    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*overrid", category=UserWarning)
            for operation, kernel in kernels.items():
                library.impl(operation, kernel, "CPU", with_keyset=True)
        yield
    finally:
        library._destroy()


def symmetric_memory(size_B: int) -> tuple[torch.Tensor, list[int]]:
    """Return memory of the current GPU, and the address of each rank's in this process; a collective call."""
    require_tried_version()
    from torch.distributed import _symmetric_memory
    from torch.distributed.distributed_c10d import _get_default_group

    gpu = torch.device("cuda", torch.cuda.current_device())
    try:
        own = _symmetric_memory.empty(size_B, dtype=torch.uint8, device=gpu)
        addresses = _symmetric_memory.rendezvous(own, _get_default_group()).buffer_ptrs
    except (ImportError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise Unavailable(f"PyTorch cannot share memory between these GPUs: {reason}") from error
    offset = own.data_ptr() - addresses[torch.distributed.get_rank()]  # within the memory that is mapped
    return own, [address + offset for address in addresses]


def process_group(name: str) -> Any:
    """Return the process group of which a functional collective has the name."""
    resolve: Any = torch._C._distributed_c10d._resolve_process_group
    return resolve(name)


def wait_for(tensor: torch.Tensor) -> None:
    """Wait for a functional collective's result; its handle is released."""
    torch.ops._c10d_functional.wait_tensor(tensor)
