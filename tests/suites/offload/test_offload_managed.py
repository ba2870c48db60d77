"""Unified memory: the same training, pages that move where they have too little room, and nothing left."""

import ctypes
import shutil
import subprocess
from dataclasses import asdict, replace

import offload_ranks
import pytest
from marked import wait_for
from places import PYTHONPATH

from harness.config.run import load
from harness.instruments.control_group import group_places
from harness.instruments.distributed.rank_pool import RankLocation, RankPool
from harness.records import Unavailable
from suites.offload import managed, unified_memory
from suites.offload.cgroup import MEMORY, Cgroup, can_leave
from suites.offload.subject import Managed, baseline

pytestmark = pytest.mark.usefixtures("ranks_by_command")

STEPS = 3

WORKLOAD = replace(
    offload_ranks.WORKLOAD, num_hidden_layers=6, hidden_size=256, num_key_value_heads=4,
    intermediate_size=704, vocab_size=512, seq_len=64, dp_size=1,
)  # fmt: skip
SIZE_B = 16 * WORKLOAD.shape.parameters  # 81 MB
SUBJECT = baseline(WORKLOAD, seed=1)


def managed_at(ratio):
    return unified_memory.apply(SUBJECT, unified_memory.Settings(ratio))


@pytest.fixture(scope="module")
def _needs_cgroup(tmp_path_factory):
    try:
        Cgroup().close()
    except Unavailable as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("pages")
    if not can_leave(str(folder)):
        pytest.skip(f"{folder} is on no disk")


needs_cgroup = pytest.mark.usefixtures("_needs_cgroup")


def rank():
    environment = {"OMP_NUM_THREADS": "1", "PYTHONPATH": PYTHONPATH}
    return RankPool([RankLocation(environment=environment)], "127.0.0.1")


def trained(pool, folder, subject, steps=STEPS, **arguments):
    """Return what the only rank's `course` returned."""
    limits = None if subject.managed is None else asdict(subject.managed)
    given = {"step": subject.step.described, "folder": str(folder), "managed": limits}
    return pool.call("offload_on_rank:course", **given, steps=steps, **arguments)[0]


@pytest.fixture(scope="module")
def tight(_needs_cgroup, tmp_path_factory):
    """Return a training with two thirds of the room that it would fill."""
    with rank() as pool:
        return trained(pool, tmp_path_factory.mktemp("tight"), managed_at(1.5))


def moved(told, name):
    return told["moved"][-1][name] - told["moved"][0][name]


@needs_cgroup
def test_it_trains_as_plain_pytorch_does_while_pages_move(tmp_path, tight):
    with rank() as pool:
        wide = trained(pool, tmp_path, managed_at(0.5))
        plain = trained(pool, tmp_path, SUBJECT)
    assert tight["losses"] == pytest.approx(plain["losses"], rel=1e-6)
    assert wide["losses"] == pytest.approx(plain["losses"], rel=1e-6)

    for told in (tight, wide):
        assert [told[name] for name in ("on_host", "limited", "gone")] == [True] * 3
        assert SIZE_B <= told["allocated_B"] < 1.001 * SIZE_B

    # Against the machine's count of all disks, and against mincore on the tensors themselves.
    page_B = tight["moved"][0]["page_B"]
    in_B, out_B = (moved(tight, name) * page_B for name in ("pages_in", "pages_out"))
    assert in_B < 1.02 * 1024 * (tight["read_kB"][-1] - tight["read_kB"][0])
    first_B = SIZE_B - tight["moved"][0]["pages_out"] * page_B
    assert tight["resident_B"] == pytest.approx(first_B + in_B - out_B, abs=2e6)
    missing_B = SIZE_B - SIZE_B / 1.5
    assert tight["resident_B"] < SIZE_B / 1.5 + 6e6
    assert in_B > 0.7 * STEPS * missing_B
    assert moved(tight, "major_faults") > 10 * STEPS
    assert moved(wide, "pages_in") < 0.02 * moved(tight, "pages_in")
    assert abs(moved(wide, "pages_out")) < 0.02 * moved(tight, "pages_out")
    assert wide["resident_B"] > 0.99 * SIZE_B


@needs_cgroup
def test_without_a_bound_nothing_is_limited_and_no_group_is_left_by_a_rank_that_was_killed(tmp_path):
    with rank() as pool:  # it ends its ranks by SIGKILL
        unbound = trained(pool, tmp_path, replace(managed_at(1.5), managed=Managed(None)), steps=1)
        told = trained(pool, tmp_path, managed_at(1.5), steps=1, close=False)
    assert unbound["on_host"]
    assert not unbound["limited"]
    assert unbound["resident_B"] > 0.99 * SIZE_B
    assert told["limited"]
    mount = group_places(MEMORY).mount
    wait_for(lambda: not list(mount.rglob(f"{MEMORY.prefix}{told['pid']}-*")), limit_s=10)


@needs_cgroup
def test_a_folder_in_memory_is_refused():
    if can_leave("/dev/shm"):
        pytest.skip("/dev/shm is on a disk")
    with rank() as pool, pytest.raises(Unavailable, match="/dev/shm have no disk to go to"):
        trained(pool, "/dev/shm", managed_at(1.5))


def test_each_variant_leaves_its_ratio_resident():
    variants = load(["suite=offload", "only=[unified_memory]"])[0].variants
    ratios = {one.name.partition(".")[2]: one.settings.get("ratio") for one in variants}
    resident = {name: managed_at(ratio).managed.resident for name, ratio in ratios.items() if ratio}
    assert resident == {"x0_5": 2, "x0_75": 1 / 0.75, "x1": 1, "x1_25": 0.8, "x1_5": 1 / 1.5}


RUNTIME = """
#include <cstdlib>
extern "C" {
long managed = 0, plain = 0, freed = 0;
int cudaMallocManaged(void** memory, size_t size, unsigned flags) {
    if (flags != 1) return 1;
    *memory = malloc(16); managed += size; return 0;
}
int cudaMalloc(void** memory, size_t size) {
    if (size > 1000) return 2;
    *memory = malloc(16); plain += size; return 0;
}
int cudaFree(void* memory) { free(memory); freed += 1; return 0; }
int cudaGetLastError() { return 0; }
int cudaDeviceGetAttribute(int* value, int attribute, int device) { *value = attribute == 89; return 0; }
}
"""


@pytest.fixture
def library(tmp_path):
    if shutil.which("g++") is None:
        pytest.skip("no g++")
    (tmp_path / "runtime.cpp").write_text(RUNTIME)
    runtime = tmp_path / "libcounting.so"
    source = tmp_path / "runtime.cpp"
    subprocess.run(["g++", "-shared", "-fPIC", source, "-o", runtime], check=True, timeout=100)
    library = managed.load(managed.build(runtime, tmp_path))
    library.managed_malloc.restype = ctypes.c_void_p
    library.managed_malloc.argtypes = [ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
    library.managed_free.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
    library.counts = ctypes.CDLL(str(runtime))
    return library


def test_the_allocator_gives_no_more_than_it_is_allowed_and_ballast_is_plain_memory(library):
    def counts():
        names = ("managed", "plain", "freed")
        return tuple(ctypes.c_long.in_dll(library.counts, name).value for name in names)

    assert library.pages_on_demand(0) == 1
    assert library.managed_malloc(1, 0, None) is None, "nothing is allowed yet"
    library.allow(100)
    first = library.managed_malloc(60, 0, None)
    assert first
    assert library.managed_malloc(41, 0, None) is None
    assert library.managed_malloc(40, 0, None)
    library.managed_free(first, 60, 0, None)
    assert library.managed_malloc(60, 0, None)
    assert counts() == (160, 0, 1)
    held = library.hold(1000)
    assert held
    assert library.hold(1001) is None
    library.release(held)
    assert counts() == (160, 1000, 2)
