"""Plain PyTorch with parameters, gradients and moments in managed memory: pages come when they are touched.

On a GPU that is CUDA's managed memory: a pool of torch's caching allocator (torch.cuda.MemPool) takes its
segments from cudaMallocManaged, through a few lines of C++ compiled against the libcudart that torch has
loaded. All other tensors stay where they were, and ballast limits the device memory left. Without a GPU it is
emulated: all of it is in files mapped into memory, and a memory cgroup limits how much of them stays in RAM;
the kernel moves the rest to the disk and back.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil
import torch
import torch.distributed as dist
from torch import Tensor, nn

from harness.records import Unavailable
from suites.offload.cgroup import PAGE_B, Cgroup, can_leave
from suites.training.host_memory import HostMemory, Resources
from suites.training.optimizers import TorchOptimizer, make_torch_optimizer
from suites.training.step import Around, TrainingStep
from suites.training.workload import Workload

SOURCE = """
#include <cstddef>

extern "C" {

int cudaMallocManaged(void** memory, size_t size, unsigned flags);
int cudaMalloc(void** memory, size_t size);
int cudaFree(void* memory);
int cudaGetLastError();
int cudaDeviceGetAttribute(int* value, int attribute, int device);

static size_t left = 0;

void allow(size_t size) { left = size; }

void* managed_malloc(size_t size, int device, void* stream) {
    void* memory = nullptr;
    if (size > left) return nullptr;
    if (cudaMallocManaged(&memory, size, 1 /* cudaMemAttachGlobal */)) return cudaGetLastError(), nullptr;
    left -= size;
    return memory;
}

void managed_free(void* memory, size_t size, int device, void* stream) {
    left += size;
    cudaFree(memory);
}

void* hold(size_t size) {
    void* memory = nullptr;
    if (cudaMalloc(&memory, size)) return cudaGetLastError(), nullptr;
    return memory;
}

void release(void* memory) { cudaFree(memory); }

int pages_on_demand(int device) {
    int able = 0;
    cudaDeviceGetAttribute(&able, 89 /* cudaDevAttrConcurrentManagedAccess */, device);
    return able;
}

}
"""

UNCOUNTED = "migrated: CUDA counts no pages that managed memory moves, without a profiler"


class ManagedMemory:
    """Managed memory on the current GPU, never more than was free on it. Raises `Unavailable`."""

    def __init__(self) -> None:
        with tempfile.TemporaryDirectory(prefix="managed") as folder:
            path = build(runtime(), Path(folder))
            self.library = load(path)
            allocator = torch.cuda.memory.CUDAPluggableAllocator(str(path), "managed_malloc", "managed_free")
        self.device = torch.cuda.current_device()
        if not self.library.pages_on_demand(self.device):
            raise Unavailable("this GPU or its driver cannot page managed memory on demand")
        self.allocator = allocator  # the pool does not keep it
        self.pool = torch.cuda.MemPool(allocator.allocator())  # type: ignore[no-untyped-call]
        self.ballast: int | None = None

    def hold(
        self, fill: Callable[[], None], rehearse: Callable[[], None], size_B: int, resident: float | None
    ) -> None:
        """Make `fill` put the working set there, with room on the device for `resident` times its bytes.

        What `rehearse` needs has room in addition. None: no bound.
        """
        self.library.allow(torch.cuda.mem_get_info()[0])
        if resident is not None:
            self._make_room(rehearse, size_B, int(resident * size_B))
        fill()
        torch.cuda.empty_cache()  # where parameters were before

    def _make_room(self, rehearse: Callable[[], None], size_B: int, resident_B: int) -> None:
        rehearse()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before_B = torch.cuda.memory_reserved()
        rehearse()
        besides_B = torch.cuda.max_memory_reserved() - before_B
        torch.cuda.empty_cache()
        free_B = torch.cuda.mem_get_info()[0]
        plain_B = size_B // 4  # parameters, which are still in plain memory and will not stay there
        ballast_B = free_B + plain_B - besides_B - resident_B
        if size_B > free_B or ballast_B < 0:
            most_B = max(size_B, besides_B + resident_B - plain_B)
            raise Unavailable(f"the GPU has {free_B / 1e9:.3g} GB free and would need {most_B / 1e9:.3g}")
        below_B = psutil.virtual_memory().available
        if size_B - resident_B > below_B:
            free = f"{below_B / 1e9:.3g} GB of memory free"
            raise Unavailable(f"what the GPU cannot hold does not fit the {free}")
        self.ballast = self.library.hold(ballast_B)
        if self.ballast is None:
            raise Unavailable(f"the GPU did not give {ballast_B / 1e9:.3g} GB of ballast")

    def put(self, tensor: Tensor) -> Tensor:
        """Put the tensor in the pool."""
        with torch.cuda.use_mem_pool(self.pool):
            return tensor.detach().clone()

    def moved(self) -> dict[str, int]:
        """Return nothing: CUDA has no counter of migrations outside a profiler."""
        return {}

    def close(self) -> None:
        """Free the ballast."""
        if self.ballast is not None:
            self.library.release(self.ballast)
            self.ballast = None


def build(runtime: Path, folder: Path) -> Path:
    """Build the allocator as a shared library in `folder`, linked against that CUDA runtime."""
    compiler = shutil.which("g++")
    if compiler is None:
        raise Unavailable("managed memory needs g++ to compile its allocator")
    source, library = folder / "managed.cpp", folder / "managed.so"
    source.write_text(SOURCE)
    command = [compiler, "-O1", "-shared", "-fPIC", str(source), str(runtime), "-o", str(library)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise Unavailable(f"g++ cannot compile the allocator of managed memory: {done.stderr.strip()[:200]}")
    return library


def load(path: Path) -> ctypes.CDLL:
    """Return the library, with its functions' types."""
    library = ctypes.CDLL(str(path))
    for name in ("allow", "hold"):
        getattr(library, name).argtypes = [ctypes.c_size_t]
    library.hold.restype = ctypes.c_void_p
    library.release.argtypes = [ctypes.c_void_p]
    return library


def runtime() -> Path:
    """Return the CUDA runtime that torch has loaded into this process."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.split(maxsplit=5)[-1]
        if Path(path).name.startswith("libcudart"):
            return Path(path)
    raise Unavailable("managed memory needs the libcudart that comes with torch, which is not loaded here")


M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""mallopt(3), of glibc."""

MS_SYNC = 4
"""msync(2), on Linux."""

REHEARSALS = 2
"""Number of rehearsals: the first creates what libraries keep."""

SPARE_B = 4 * 2**20
"""Room beyond the rehearsed bytes: for what no rehearsal needs, and for pages that move many at a time."""


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
        self.memory: ManagedMemory | PagedFiles = (
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

        A page that leaves counts whether or not it must be written: of a device's memory it must be sent.
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
