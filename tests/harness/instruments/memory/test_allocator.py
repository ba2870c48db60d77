"""The allocator's watch against allocations of known size, and a workspace against its own operation."""

from __future__ import annotations

import pytest
import torch

from harness.instruments.memory import workspaces as asked
from harness.instruments.memory.allocator import watch
from harness.instruments.memory.dry_run.fake_tensors import StorageLog, logged

CPU = torch.device("cpu")
MB = 1024**2


def megabytes(count: int) -> torch.Tensor:
    return torch.ones(count * MB, dtype=torch.uint8)


def test_peak_of_each_span():
    with watch(CPU) as allocator:
        allocator.mark("held")
        held = megabytes(3)
        allocator.mark("held and let go")
        more = megabytes(5)
        del more
        allocator.mark("only held")
        small = megabytes(1)
        del small, held
        allocator.mark("nothing")
    peaks = [(peak.mark, peak.live_B / MB) for peak in allocator.peaks]
    assert peaks == [("held", 3), ("held and let go", 8), ("only held", 4), ("nothing", 0)]


def test_what_was_there_before_is_not_counted():
    before = megabytes(7)
    with watch(CPU) as allocator:
        allocator.mark("span")
        after = megabytes(2)
    assert [peak.live_B for peak in allocator.peaks] == [2 * MB]
    del before, after


def test_temporaries_within_an_operation_are_seen():
    narrow, wide = torch.ones(MB, dtype=torch.bfloat16), torch.ones(MB)
    with watch(CPU) as allocator:
        allocator.mark("add")
        wide.add_(narrow)  # widens `narrow` first
    assert allocator.peaks[0].live_B == 4 * MB


def test_resident_memory_holds_what_is_touched():
    with watch(CPU) as allocator:
        allocator.mark("touched")
        touched = megabytes(200)
        del touched
        allocator.mark("let go")
    first, second = allocator.peaks
    assert 195 * MB < first.resident_B < 400 * MB
    assert second.resident_B < first.resident_B - 150 * MB
    assert first.reserved_B is None


def test_an_exception_within_passes_through():
    def fail():
        with watch(CPU) as allocator:
            allocator.mark("span")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    with watch(CPU) as allocator:  # the profiler is free again
        allocator.mark("span")


def test_cuda_is_asked_step_by_step(monkeypatch):
    """The order of calls, on a device that is not there: reset at a mark; wait, then read, at the next."""
    calls: list[str] = []
    figures = {"max_memory_allocated": iter([10, 20]), "max_memory_reserved": iter([16, 32])}

    def fake(name):
        def call(device):
            calls.append(name)
            return next(figures[name]) if name in figures else None

        return call

    for name in ("reset_peak_memory_stats", "synchronize", *figures):
        monkeypatch.setattr(torch.cuda, name, fake(name))
    with watch(torch.device("cuda")) as allocator:
        allocator.mark("step 0")
        allocator.mark("step 1")
    span = ["reset_peak_memory_stats", "synchronize", "max_memory_allocated", "max_memory_reserved"]
    assert calls == span * 2
    found = [(peak.mark, peak.live_B, peak.reserved_B) for peak in allocator.peaks]
    assert found == [("step 0", 10, 16), ("step 1", 20, 32)]


def test_log_of_fake_tensors_counts_storages_once():
    log = StorageLog()
    with logged(log):
        log.enter_phase("forward 0")
        whole = torch.zeros(1000)
        part = whole[10:20].view(2, 5)
        assert sum(event.delta_B for event in log.ledger.events) == 4000
        del whole
        assert sum(event.delta_B for event in log.ledger.events) == 4000  # `part` is a view of it
        del part
        assert sum(event.delta_B for event in log.ledger.events) == 0


def test_log_follows_a_resized_storage():
    log = StorageLog()
    with logged(log):
        tensor = torch.zeros(1000)
        tensor.untyped_storage().resize_(0)
        assert sum(event.delta_B for event in log.ledger.events) == 0
        tensor.untyped_storage().resize_(8000)
        assert sum(event.delta_B for event in log.ledger.events) == 8000
        tensor.untyped_storage().resize_(9000)
        del tensor
        assert sum(event.delta_B for event in log.ledger.events) == 0
    events = [event[:2] for event in log.ledger.timeline().events]  # both sizes are held while it grows
    assert events == [(0, 4000), (0, -4000), (1, 8000), (2, 9000), (1, -8000), (2, -9000)]


def test_sizes_are_rounded_up_as_the_allocator_does():
    log = StorageLog()
    with logged(log):
        kept = [torch.zeros(1), torch.zeros(128), torch.zeros(129)]
        del kept[2]
    timeline = log.ledger.timeline(round_to_B=512)
    assert timeline.sizes_B() == [512, 512, 1024, -1024]
    assert timeline.peak().total_B == 2048


def test_a_workspace_is_what_the_operation_takes():
    """Asked of the host; held against the watch, which runs the operation by itself."""
    left, right = torch.ones(96, 160, dtype=torch.bfloat16), torch.ones(160, 224, dtype=torch.bfloat16)
    assert asked.takes_more(torch.ops.aten.mm.default, (left, right))
    assert not asked.takes_more(torch.ops.aten.mm.default, (left.float(), right.float()))
    call = asked.call_of(torch.ops.aten.mm.default, (left, right), {})
    (answer_B,) = asked.workspaces([call]).values()
    torch.mm(left, right)
    with watch(CPU) as allocator:
        allocator.mark("mm")
        result = torch.mm(left, right)
    assert allocator.peaks[0].live_B == result.nbytes + answer_B


def test_large_calls_are_not_run():
    with torch.device("meta"):
        left, right = torch.empty(2**14, 2**14), torch.empty(2**14, 2**14)
    call = asked.call_of(torch.ops.aten.mm.default, (left, right), {})
    assert asked.workspaces([call]) == {call: 0}
