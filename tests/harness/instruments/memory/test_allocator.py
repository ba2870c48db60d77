"""The allocator's watch against allocations of known size, and a workspace against its own operation."""

import torch

from harness.instruments.memory import workspaces as asked
from harness.instruments.memory.allocator import watch
from harness.instruments.memory.dry_run.fake_tensors import StorageLog, logged

CPU = torch.device("cpu")
MB = 1024**2


def megabytes(count: int) -> torch.Tensor:
    return torch.ones(count * MB, dtype=torch.uint8)


def test_the_peak_of_each_span_is_of_what_was_allocated_since_the_first():
    before = megabytes(7)
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
    del before


def test_cuda_is_asked_step_by_step(monkeypatch):
    """The order of calls, on a device that is not there: reset at a mark; wait, then read, at the next."""
    calls: list[str] = []
    figures = {"max_memory_allocated": iter([10, 20]), "max_memory_reserved": iter([16, 32])}
    span = ["reset_peak_memory_stats", "synchronize", *figures]
    for name in span:

        def fake(device, name=name):
            calls.append(name)
            return next(figures[name]) if name in figures else None

        monkeypatch.setattr(torch.cuda, name, fake)
    with watch(torch.device("cuda")) as allocator:
        allocator.mark("step 0")
        allocator.mark("step 1")
    assert calls == span * 2
    found = [(peak.mark, peak.live_B, peak.reserved_B) for peak in allocator.peaks]
    assert found == [("step 0", 10, 16), ("step 1", 20, 32)]


def test_the_log_of_fake_tensors_counts_storages_once_and_follows_resized_ones():
    log = StorageLog()
    with logged(log):
        log.enter_phase("forward 0")
        full = torch.zeros(1000)
        part = full[10:20].view(2, 5)
        del full
        assert sum(event.delta_B for event in log.ledger.events) == 4000  # `part` is a view of it
        del part
        tensor = torch.zeros(1000)
        for size_B in (0, 8000, 9000):
            tensor.untyped_storage().resize_(size_B)
        del tensor
        kept = [torch.zeros(1), torch.zeros(128), torch.zeros(129)]
        del kept[2]
    found = [event[:2] for event in log.ledger.timeline().events[:8]]  # both sizes are held while it grows
    resized = [(1, 4000), (1, -4000), (2, 8000), (3, 9000), (2, -8000), (3, -9000)]
    assert found == [(0, 4000), (0, -4000), *resized]
    assert log.ledger.timeline(round_to_B=512).sizes_B()[8:] == [512, 512, 1024, -1024]


def test_a_workspace_is_what_the_operation_takes_and_large_calls_are_not_run():
    """Asked of the host, compared with the watch, which runs the operation by itself."""
    mm = torch.ops.aten.mm.default
    left, right = torch.ones(96, 160, dtype=torch.bfloat16), torch.ones(160, 224, dtype=torch.bfloat16)
    assert asked.takes_more(mm, (left, right))
    assert not asked.takes_more(mm, (left.float(), right.float()))
    (answer_B,) = asked.workspaces([asked.call_of(mm, (left, right), {})]).values()
    torch.mm(left, right)
    with watch(CPU) as allocator:
        allocator.mark("mm")
        result = torch.mm(left, right)
    assert allocator.peaks[0].live_B == result.nbytes + answer_B
    with torch.device("meta"):
        left, right = torch.empty(2**14, 2**14), torch.empty(2**14, 2**14)
    call = asked.call_of(mm, (left, right), {})
    assert asked.workspaces([call]) == {call: 0}
