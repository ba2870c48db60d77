"""CUDA's managed memory for chosen tensors, and ballast that limits the device memory left for them.

A pool of torch's caching allocator (torch.cuda.MemPool) takes its segments from cudaMallocManaged, through a
few lines of C++ compiled against the libcudart that torch has loaded; all other tensors stay where they were.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import psutil
import torch
from torch import Tensor

from harness.records import Unavailable

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
        """See `managed.WorkingSetMemory`. Ballast is allocated before the first page arrives."""
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
            raise Unavailable(
                f"what the GPU cannot hold does not fit the {below_B / 1e9:.3g} GB of memory free"
            )
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
