"""The memory tier below the device, and the traffic between them."""

import errno
import gc
import os
import resource
import stat
from pathlib import Path

import pytest
import torch

from harness.instruments.memory.process_memory import private_bytes
from harness.records import Unavailable
from suites.offload.on_rank import TransferCounter
from suites.training.host_memory import HostMemory as Host

CPU = torch.device("cpu")
MIB = 2**20
N = 100
BF16 = torch.bfloat16


@pytest.fixture
def host(tmp_path):
    return Host(CPU, str(tmp_path))


def above(*shape, dtype=torch.float32):
    return torch.ones(shape, dtype=dtype)


def below(host, *shape, dtype=torch.float32):
    return host.empty(shape, dtype).fill_(2)


@pytest.mark.parametrize(("shape", "dtype"), [((), BF16), ((3, 5, 2), torch.float32), ((3, 0), torch.uint8)])
def test_what_is_kept_is_a_copy_of_the_same_kind_made_once(host, dtype, shape):
    tensor = torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype)
    kept = host.keep(tensor)
    assert (kept.shape, kept.dtype) == (tensor.shape, dtype)
    assert torch.equal(kept, tensor)
    assert host.holds(kept) is (tensor.numel() > 0)
    assert not host.holds(tensor)
    assert host.allocated_B == tensor.nbytes
    assert tensor.numel() == 0 or host.keep(kept) is kept
    assert host.allocated_B == tensor.nbytes
    tensor.fill_(100)
    assert tensor.numel() == 0 or not torch.equal(kept, tensor)


def test_bytes_are_counted_while_they_lie_there(host):
    first, second = host.empty((N,), torch.float32), host.empty((N,), BF16)
    assert (host.allocated_B, host.most_B) == (6 * N, 6 * N)
    view = first[:1]
    del first
    gc.collect()
    assert host.allocated_B == 6 * N  # the view holds all of it
    del view
    gc.collect()
    assert (host.allocated_B, host.most_B) == (2 * N, 6 * N)
    locked = above(2 * N)  # somebody else's
    host.note(locked)
    assert (host.allocated_B, host.most_B) == (10 * N, 10 * N)
    del second, locked
    gc.collect()
    assert (host.allocated_B, host.most_B) == (0, 10 * N)


def mapped_B():
    """Return bytes of deleted files that are mapped into this process."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    ends = [line.split()[0].split("-") for line in lines if line.endswith("(deleted)") and " rw-s " in line]
    return sum(int(end, 16) - int(begin, 16) for begin, end in ends)


def test_it_is_no_private_memory_and_leaves_no_file(host, tmp_path):
    size_B, descriptors = 64 * MIB, len(os.listdir("/proc/self/fd"))
    tensor = above(size_B // 4)
    host.keep(tensor[: 1 << 16])  # what a first copy takes once
    gc.collect()
    before_B = private_bytes()
    kept = [host.keep(tensor), *(host.keep(above(N)) for _ in range(20))]
    assert float(kept[0][-1]) == 1
    assert abs(private_bytes() - before_B) < 4 * MIB
    assert mapped_B() >= size_B
    assert list(tmp_path.iterdir()) == []
    assert str(tmp_path) in Path("/proc/self/maps").read_text()
    assert len(os.listdir("/proc/self/fd")) - descriptors <= len(kept)  # a mapping has one of its own
    kept.clear()
    gc.collect()
    assert mapped_B() < size_B
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_a_folder_that_is_not_there_or_may_not_be_written(tmp_path):
    with pytest.raises(Unavailable, match=r"400 B more .*: No such file or directory"):
        Host(CPU, "/nonexistent").empty((N,), torch.float32)
    if os.geteuid() != 0:  # root may write everywhere
        tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
        with pytest.raises(Unavailable, match="Permission denied"):
            Host(CPU, str(tmp_path)).empty((N,), torch.float32)


def test_a_full_disk_is_reported_at_once_and_leaves_nothing(host, tmp_path, monkeypatch):
    def full(descriptor, offset, size):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(Unavailable, match=r"400 B more .*: No space left on device"):
            host.empty((N,), torch.float32)
    assert (host.allocated_B, host.most_B, list(tmp_path.iterdir())) == (0, 0, [])
    assert float(host.keep(above(N)).sum()) == N


def test_a_file_larger_than_allowed_is_reported_at_once(host):
    """As a full disk would be, by the kernel itself."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, hard))
    try:
        with pytest.raises(Unavailable, match="File too large"):
            host.empty((2 * MIB,), torch.uint8)
        assert host.empty((MIB // 2,), torch.uint8).numel() == MIB // 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    gc.collect()
    assert host.allocated_B == 0


def test_which_tensors_lie_there(host, tmp_path):
    """New memory may come to lie where a mapping was."""
    tensors = [host.empty((MIB,), torch.uint8) for _ in range(8)]
    del tensors[1::2]
    gc.collect()
    assert host.allocated_B == 4 * MIB
    assert not any(host.holds(torch.empty(MIB, dtype=torch.uint8)) for _ in range(16))
    for one in tensors:
        assert all(host.holds(there) for there in (one, one[MIB - 1 :], one.view(2, MIB // 2).t()))
        assert not any(host.holds(other) for other in (one.clone(), one + 1))
    other_host = Host(CPU, str(tmp_path)).empty((N,), torch.float32)
    elsewhere = (other_host, torch.empty(0), torch.empty(N, device="meta"))
    assert not any(host.holds(other) for other in elsewhere)


TARGET = above(N)

CROSSINGS = {
    "a copy up": (lambda up, down, other: up.copy_(down), 4 * N, 0),
    "a copy down": (lambda up, down, other: down.copy_(up), 0, 4 * N),
    "a row that is spread out": (lambda up, down, other: above(5, N).copy_(down.view(1, N)), 4 * N, 0),
    "an operand from below": (lambda up, down, other: up + down, 4 * N, 0),
    "in place below": (lambda up, down, other: down.add_(up), 0, 4 * N),
    "two operands from above": (lambda up, down, other: torch.add(up, up * 1, out=down), 0, 8 * N),
    "a product": (lambda up, down, other: above(3, 10) @ down[:70].view(10, 7), 280, 0),
    "parts of one storage": (lambda up, down, other: torch.cat(down.split(10)), 4 * N, 0),
    "many up": (lambda up, down, other: torch._foreach_copy_([up, TARGET], [down, other]), 8 * N, 0),
    "many down": (lambda up, down, other: torch._foreach_copy_([down, other], [up, TARGET]), 0, 8 * N),
}
"""What each call moves up and down, in bytes; `up` lies above, `down` and `other` below, each with N floats.

deepspeed's shards lie in one storage and are gathered together.
"""


def test_what_crosses(host):
    for name, (call, up_B, down_B) in CROSSINGS.items():
        up, down, other = above(N), below(host, N), below(host, N)
        with TransferCounter(host) as traffic:
            call(up, down, other)
        assert (traffic.up_B, traffic.down_B) == (up_B, down_B), name
