"""The memory tier below the device, and the traffic between them."""

from __future__ import annotations

import errno
import gc
import os
import resource
import stat
from pathlib import Path

import pytest
import torch
from torch.distributed.tensor import DTensor, Shard

from harness.instruments.distributed.fake_process_group import fake_process_group, rank_mesh
from harness.instruments.memory.process_memory import private_bytes
from harness.records import Unavailable
from suites.offload.on_rank import TransferCounter
from suites.training.host_memory import HostMemory as Host

CPU = torch.device("cpu")
MIB = 2**20
N = 100


@pytest.fixture
def host(tmp_path):
    return Host(CPU, str(tmp_path))


def above(*shape, dtype=torch.float32):
    return torch.ones(shape, dtype=dtype)


def below(host, *shape, dtype=torch.float32):
    tensor = host.empty(shape, dtype)
    return tensor.fill_(2)


# The host.


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8])
@pytest.mark.parametrize("shape", [(), (7,), (3, 5, 2)])
def test_what_is_kept_is_a_copy_of_the_same_kind(host, dtype, shape):
    tensor = torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype)
    kept = host.keep(tensor)
    assert (kept.shape, kept.dtype) == (tensor.shape, dtype)
    assert torch.equal(kept, tensor)
    assert host.holds(kept)
    assert not host.holds(tensor)
    tensor.fill_(100)
    assert tensor.numel() == 0 or not torch.equal(kept, tensor)


def test_what_lies_there_already_is_not_copied(host):
    kept = host.keep(above(N))
    assert host.keep(kept) is kept
    assert host.keep(kept[10:20]).data_ptr() == kept[10:20].data_ptr()
    assert host.allocated_B == 4 * N


def test_a_transposed_tensor_keeps_its_values(host):
    tensor = torch.arange(12.0).view(3, 4).t()
    assert torch.equal(host.keep(tensor), tensor)


def test_of_a_parameter_the_values_are_kept_and_no_graph(host):
    kept = host.keep(torch.nn.Parameter(above(N)))
    assert not kept.requires_grad
    assert kept.grad_fn is None


def test_bytes_are_counted_while_they_lie_there(host):
    first, second = host.empty((N,), torch.float32), host.empty((N,), torch.bfloat16)
    assert (host.allocated_B, host.most_B) == (6 * N, 6 * N)
    view = first[:1]
    del first
    gc.collect()
    assert host.allocated_B == 6 * N  # the view holds all of it
    del view
    gc.collect()
    assert (host.allocated_B, host.most_B) == (2 * N, 6 * N)
    del second
    gc.collect()
    assert (host.allocated_B, host.most_B) == (0, 6 * N)


def test_what_somebody_else_put_there_counts_as_long_as_it_lives(host):
    locked = above(N)
    host.note(locked)
    assert host.allocated_B == 4 * N
    del locked
    gc.collect()
    assert (host.allocated_B, host.most_B) == (0, 4 * N)


def test_private_memory_is_untouched_and_is_given_back(host):
    size_B = 64 * MIB
    tensor = above(size_B // 4)
    host.keep(tensor[: 1 << 16])  # what a first copy takes once
    gc.collect()
    before_B = private_bytes()
    kept = host.keep(tensor)
    assert float(kept[-1]) == 1
    assert abs(private_bytes() - before_B) < 4 * MIB
    assert mapped_B() >= size_B
    del kept
    gc.collect()
    assert mapped_B() < size_B


def mapped_B():
    """Return bytes of deleted files that are mapped into this process."""
    total = 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith("(deleted)") and " rw-s " in line:
            begin, end = (int(one, 16) for one in line.split()[0].split("-"))
            total += end - begin
    return total


def test_the_folder_is_empty_even_while_tensors_lie_in_it(host, tmp_path):
    kept = host.keep(above(N))
    assert list(tmp_path.iterdir()) == []
    assert str(tmp_path) in Path("/proc/self/maps").read_text()
    assert float(kept.sum()) == N


def test_no_descriptor_stays_open(host):
    before = len(os.listdir("/proc/self/fd"))
    kept = [host.keep(above(N)) for _ in range(20)]
    held = len(os.listdir("/proc/self/fd")) - before
    assert held <= len(kept)  # a mapping has one of its own
    del kept
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("shape", [(0,), (3, 0, 2)])
def test_nothing_takes_nothing(host, shape):
    empty = host.empty(shape, torch.float32)
    assert (empty.shape, empty.numel()) == (torch.Size(shape), 0)
    assert host.keep(torch.empty(shape)).shape == torch.Size(shape)
    assert host.allocated_B == 0


def test_a_folder_that_is_not_there():
    with pytest.raises(Unavailable, match=r"400 B more .*: No such file or directory"):
        Host(CPU, "/nonexistent").empty((N,), torch.float32)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written(tmp_path):
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
    tensors = [host.empty((N,), torch.float32) for _ in range(5)]
    for one in tensors:
        assert host.holds(one)
        assert host.holds(one[N - 1 :])
        assert host.holds(one.view(2, 50).t())
        assert not host.holds(one.clone())
        assert not host.holds(one + 1)
    assert not host.holds(above(N))
    assert not host.holds(torch.empty(0))
    assert not host.holds(torch.empty(N, device="meta"))
    assert not host.holds(Host(CPU, str(tmp_path)).empty((N,), torch.float32))


def test_a_freed_storage_is_nowhere(host):
    tensor = above(N)
    tensor.untyped_storage().resize_(0)
    assert not host.holds(tensor)


def test_what_was_given_back_lies_there_no_longer(host):
    """New memory may come to lie where a mapping was."""
    tensors = [host.empty((MIB,), torch.uint8) for _ in range(8)]
    del tensors[1::2]
    gc.collect()
    assert host.allocated_B == 4 * MIB
    assert not any(host.holds(torch.empty(MIB, dtype=torch.uint8)) for _ in range(16))
    assert all(host.holds(one) for one in tensors)


def test_what_threads_carry_is_counted_by_where_it_goes(host):
    host.carried(above(N))
    host.carried(below(host, 3))
    assert (host.up_B, host.down_B) == (4 * N, 12)


# What crosses.


@pytest.fixture
def crossed(host):
    """Return what a call moved up and down, in bytes."""

    def count(call):
        with TransferCounter(host) as traffic:
            call()
        return traffic.up_B, traffic.down_B

    return count


def test_a_copy_each_way(host, crossed):
    up, down = above(N), below(host, N)
    assert crossed(lambda: up.copy_(down)) == (4 * N, 0)
    assert crossed(lambda: down.copy_(up)) == (0, 4 * N)
    assert crossed(lambda: up.copy_(above(N))) == (0, 0)
    assert crossed(lambda: down.copy_(below(host, N))) == (0, 0)


@pytest.mark.parametrize(("source", "target"), [(4, 2), (2, 4)])
def test_a_copy_between_types_moves_the_targets_bytes(host, crossed, source, target):
    """torch converts on the side of the source (ATen/native/cuda/Copy.cu), as on a GPU."""
    types = {2: torch.bfloat16, 4: torch.float32}
    up, down = above(N, dtype=types[target]), below(host, N, dtype=types[source])
    assert crossed(lambda: up.copy_(down)) == (target * N, 0)
    up, down = above(N, dtype=types[source]), below(host, N, dtype=types[target])
    assert crossed(lambda: down.copy_(up)) == (0, target * N)


def test_what_is_spread_out_crosses_once(host, crossed):
    up, row = above(5, N), below(host, 1, N)
    assert crossed(lambda: up.copy_(row)) == (4 * N, 0)


def test_a_part_crosses_alone(host, crossed):
    up, down = above(N), below(host, N)
    assert crossed(lambda: up[:10].copy_(down[90:])) == (40, 0)


def test_many_copies_at_once(host, crossed):
    ups = [above(10), above(20), above(30, dtype=torch.bfloat16)]
    downs = [below(host, 10), below(host, 20), below(host, 30)]
    assert crossed(lambda: torch._foreach_copy_(ups, downs)) == (40 + 80 + 60, 0)
    assert crossed(lambda: torch._foreach_copy_(downs, ups)) == (0, 40 + 80 + 120)
    mixed = crossed(lambda: torch._foreach_copy_([ups[0], downs[1]], [downs[0], ups[1]]))
    assert mixed == (40, 80)


def test_an_operation_moves_what_it_reads_from_the_other_tier(host, crossed):
    up, down, other = above(N), below(host, N), below(host, N)
    assert crossed(lambda: up + down) == (4 * N, 0)
    assert crossed(lambda: up.add_(down)) == (4 * N, 0)
    assert crossed(lambda: down.add_(up)) == (0, 4 * N)
    assert crossed(lambda: torch.add(up, up * 1, out=down)) == (0, 8 * N)
    assert crossed(lambda: torch.mul(down, up, out=other)) == (0, 4 * N)
    assert crossed(lambda: up + down + other) == (8 * N, 0)
    assert crossed(lambda: above(3, 10) @ below(host, 10, 7)) == (280, 0)


def test_what_is_read_twice_crosses_once(host, crossed):
    down = below(host, N)
    assert crossed(lambda: torch.cat([down, down])) == (4 * N, 0)
    assert crossed(lambda: torch.addcmul(above(N), down, down)) == (4 * N, 0)


def test_parts_of_one_storage_cross_each(host, crossed):
    """As deepspeed's shards, that lie in one buffer and are gathered together."""
    down, target = below(host, N), above(N)
    parts = list(down.split(10))
    assert crossed(lambda: torch.cat(parts)) == (4 * N, 0)
    assert crossed(lambda: torch.cat(parts, out=target)) == (4 * N, 0)
    assert crossed(lambda: torch.cat(parts[:3])) == (120, 0)


def test_views_move_nothing(host, crossed):
    down = below(host, N)
    assert crossed(lambda: down.view(10, 10).t()[3:].unsqueeze(0)) == (0, 0)


def test_what_happens_on_one_tier_crosses_nothing(host, crossed):
    master, narrow = below(host, N), below(host, N, dtype=torch.bfloat16)
    gradient = below(host, N)

    def on_the_host():
        master.sub_(gradient)
        master.mul_(0.9)
        torch.add(master, gradient, out=gradient)
        narrow.copy_(master)

    assert crossed(on_the_host) == (0, 0)
    assert crossed(lambda: (above(N) @ above(N, N)).relu_()) == (0, 0)


def test_an_optimizer_on_the_host_crosses_nothing(host, crossed):
    master = torch.nn.Parameter(host.keep(above(N)))
    master.grad = below(host, N)
    optimizer = torch.optim.AdamW([master], fused=True)
    optimizer.state[master] = {
        "step": torch.zeros(()),
        "exp_avg": below(host, N),
        "exp_avg_sq": below(host, N),
    }
    assert crossed(optimizer.step) == (0, 0)
    assert float(master[0]) != 1


def test_a_number_is_no_traffic(host, crossed):
    up, step = above(N), below(host)
    assert crossed(lambda: up.mul_(step)) == (0, 0)


def test_what_other_threads_carried_meanwhile_is_added(host):
    host.carried(above(N))
    with TransferCounter(host) as traffic:
        host.carried(above(10))
        host.carried(below(host, 5))
        above(20).copy_(below(host, 20))
    assert (traffic.up_B, traffic.down_B) == (40 + 80, 20)


def test_a_sharded_tensor_moves_this_ranks_part_once(host):
    with fake_process_group(4):
        mesh = rank_mesh("cpu")

        def sharded(part):
            return DTensor.from_local(part, mesh, [Shard(0)], run_check=False)

        up, down = sharded(above(N)), sharded(below(host, N))
        assert up.numel() == 4 * N
        with TransferCounter(host) as traffic:
            up.copy_(down)
            down.add_(up)
            up + down
        assert (traffic.up_B, traffic.down_B) == (2 * 4 * N, 4 * N)
