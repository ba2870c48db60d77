"""Plain PyTorch with parameters, gradients and moments in managed memory: pages come when they are touched.

On a GPU that is CUDA's managed memory (`suites.offload.managed_memory`). Without one it is emulated: all of
it is in files mapped into memory, and a memory cgroup limits how much of them stays in RAM; the kernel moves
the rest to the disk and back.
"""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Protocol

import psutil
import torch
import torch.distributed as dist
from torch import Tensor, nn

from harness.records import Unavailable
from suites.offload.cgroup import PAGE_B, Cgroup, can_leave
from suites.offload.managed_memory import ManagedMemory
from suites.training.host_memory import HostMemory, Resources
from suites.training.optimizers import TorchOptimizer, make_torch_optimizer
from suites.training.step import Around, TrainingStep
from suites.training.workload import Workload

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""mallopt(3), of glibc."""

MS_SYNC = 4
"""msync(2), on Linux."""

REHEARSALS = 2
"""Number of rehearsals: the first creates what libraries keep."""

SPARE_B = 4 * 2**20
"""Room beyond the rehearsed bytes: for what no rehearsal needs, and for pages that move many at a time."""


class WorkingSetMemory(Protocol):
    """Where the working set goes."""

    def hold(
        self, fill: Callable[[], None], rehearse: Callable[[], None], size_B: int, resident: float | None
    ) -> None:
        """Make `fill` put the working set there, with room on the device for `resident` times its bytes.

        What `rehearse` needs has room in addition. None: no bound.
        """

    def put(self, tensor: Tensor) -> Tensor:
        """Return a copy of the tensor there."""

    def moved(self) -> dict[str, int]:
        """Return what has moved so far; empty where it is not counted."""

    def close(self) -> None:
        """Remove the bound."""


def manage(step: TrainingStep, resident: float | None) -> TrainingStep:
    """Return the step with parameters, gradients and moments in managed memory, bounded by `resident`.

    None sets no bound: under a profiler, its own memory would count.
    """
    return replace(
        step,
        make_optimizer=partial(ManagedOptimizer, resident, step.around),
        keep_gradients=True,
        no_dry_run="fake tensors have one memory tier; managed memory has two",
    )


class ManagedOptimizer(TorchOptimizer):
    """The workload's AdamW, its working set in managed memory. Raises `Unavailable` with several ranks."""

    def __init__(
        self,
        resident: float | None,
        around: Around,
        model: nn.Module,
        workload: Workload,
        resources: Resources,
    ) -> None:
        if dist.get_world_size() > 1:
            raise Unavailable("managed memory needs a single process: dp_size must be 1")
        parameters = list(model.parameters())
        super().__init__(parameters, make_torch_optimizer(parameters, workload))
        self.model, self.workload, self.around, self.device = model, workload, around, resources.device
        cuda = resources.device.type == "cuda"
        self.memory: WorkingSetMemory = (
            ManagedMemory() if cuda else PagedFiles(resources.host, resources.folder)
        )
        try:
            size_B = 4 * sum(one.nbytes for one in parameters)
            self.memory.hold(self._fill, self._rehearse, size_B, resident)
        except BaseException:
            self.memory.close()
            raise

    def set_gradients_to_zeros(self) -> bool:
        """Return False: its gradients are in managed memory, where a backward pass puts them."""
        return False

    def moved(self) -> dict[str, int]:
        """Return major_faults, pages_in, pages_out and page_B so far; empty on a GPU, and without a bound.

        A page counts as moved out whether or not it must be written: what leaves a device's memory must be
        sent.
        """
        return self.memory.moved()

    def close(self) -> None:
        """Give up the bound."""
        self.memory.close()

    def _rehearse(self) -> None:
        """Run a step without its update, releasing gradients at once: it uses what is not the working set."""
        size = (self.workload.micro_batch_size, self.workload.seq_len)
        tokens_BT = torch.zeros(size, dtype=torch.int64, device=self.device)
        hooks = [
            one.register_post_accumulate_grad_hook(_release)  # type: ignore[no-untyped-call]
            for one in self.parameters
        ]
        with self.around(self.device.type):
            loss = self.model(tokens_BT, tokens_BT)
        loss.backward()
        for hook in hooks:
            hook.remove()

    def _fill(self) -> None:
        """Move parameters, their gradients and moments into managed memory."""
        for parameter in self.parameters:
            parameter.data = self.memory.put(parameter.data)
            parameter.grad = self.memory.put(torch.zeros_like(parameter))
            self.inner.state[parameter] = {
                "step": torch.zeros((), device=self.device),
                "exp_avg": self.memory.put(torch.zeros_like(parameter)),
                "exp_avg_sq": self.memory.put(torch.zeros_like(parameter)),
            }


class PagedFiles:
    """The emulation: files on a disk, mapped into memory, and this process in a memory cgroup.

    Files are on the group's account because they are first touched inside it.
    """

    def __init__(self, host: HostMemory, folder: str) -> None:
        folder = folder or tempfile.gettempdir()
        if not can_leave(folder):
            raise Unavailable(f"pages of files in {folder} have no disk to go to: set another `offload_dir`")
        self.host, self.libc, self.group = host, ctypes.CDLL(None), Cgroup()
        self.first_written_pages: int | None = None  # pages first written, not read; None: no bound

    def hold(
        self, fill: Callable[[], None], rehearse: Callable[[], None], size_B: int, resident: float | None
    ) -> None:
        """Fill without a limit, then set it to the private memory plus `resident` times the rest.

        Private memory is then at its peak, because freed memory is kept: otherwise it would be returned after
        each step and taken again, and pages of files would use that room meanwhile.
        """
        if resident is None:
            fill()
            return
        if hasattr(self.libc, "mallopt"):
            self.libc.mallopt(M_TRIM_THRESHOLD, -1)
            self.libc.mallopt(M_MMAP_MAX, 0)
        self.group.enter()
        for _ in range(REHEARSALS):
            rehearse()
        fill()
        now = self.group.account()
        self.first_written_pages = now.file_pages - read_pages()
        self.group.limit(int(now.private_B + resident * (now.usage_B - now.private_B) + SPARE_B))

    def put(self, tensor: Tensor) -> Tensor:
        """Put the tensor in a file, written to the disk, so that its pages can be evicted at once."""
        kept = self.host.keep(tensor)
        self.libc.msync(ctypes.c_void_p(kept.data_ptr()), ctypes.c_size_t(kept.nbytes), MS_SYNC)
        return kept

    def moved(self) -> dict[str, int]:
        """Return pages read again, and those evicted: all that ever came, less those present."""
        if self.first_written_pages is None:
            return {}
        now, pages_in = self.group.account(), read_pages()
        return {
            "major_faults": now.major_faults,
            "pages_in": pages_in,
            "pages_out": self.first_written_pages + pages_in - now.file_pages,
            "page_B": PAGE_B,
        }

    def close(self) -> None:
        """Leave the group and remove it."""
        self.group.close()


def read_pages() -> int:
    """Return the pages read from disks for this process, by the kernel's account (proc(5), io)."""
    return psutil.Process().io_counters().read_bytes // PAGE_B


def _release(parameter: nn.Parameter) -> None:
    parameter.grad = None
