"""What the memory suite says of reserved bytes, of those outside the allocator, and of what fits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from small_steps import CUDA, LLAMA, LLAMA_7B, make_step

from harness.instruments.memory.caching_allocator import CachingAllocator, DeviceFullError
from harness.records import Note, Origin, Reading
from suites.memory import suite as memory
from suites.memory.subject import Subject, outside_allocator_B, retries_to_fit, room_B
from suites.memory.thresholds import ranks_that_suffice, used_B
from suites.training.dry_run.dry_run import dry_run
from suites.training.techniques import build_step

MiB = 1024**2

STEP = build_step(
    replace(LLAMA_7B, num_hidden_layers=2, vocab_size=4000, optimizer_impl="fused"), ["attention"]
)
SUBJECT = Subject(STEP, 80e9, simulated_device="cuda", usable_memory_B=85e9)


@pytest.fixture(scope="module")
def run():
    return memory.peak_of_rank(SUBJECT)


def readings(subject, run):
    found = [one for one in memory.simulated(subject, lambda _: run) if isinstance(one, Reading)]
    return {one.metric: one for one in found}


def notes(subject, run):
    return [one.text for one in memory.simulated(subject, lambda _: run) if isinstance(one, Note)]


def by_hand(run, capacity_B=None):
    """Return the allocator after the run's events, one by one, but for what lives in set-up alone."""
    allocator, blocks = CachingAllocator(capacity_B=capacity_B), {}
    for event in run.timeline.events:
        ends = [one for one in run.timeline.events if one.storage == event.storage and one.delta_B < 0]
        if ends and ends[0].place.phase == "build":
            continue
        if event.delta_B > 0:
            blocks[event.storage] = allocator.allocate(event.delta_B, event.stream)
        else:
            allocator.release(blocks.pop(event.storage))
    return allocator


def test_reserved_is_beside_allocated(run):
    found = readings(SUBJECT, run)
    assert found["reserved_memory"].value == by_hand(run).peak_reserved_B > found["peak_memory"].value
    assert found["reserved_memory"].origin is Origin.SIMULATED
    assert found["outside_allocator/cuda_context"].origin is Origin.CALCULATED
    assert "outside_allocator/nccl_buffers" not in found


def test_host_steps_have_no_reserved_bytes():
    subject = Subject(make_step(LLAMA, num_hidden_layers=1), 80e9)
    found = readings(subject, memory.peak_of_rank(subject))
    assert "reserved_memory" not in found
    assert found["gpus"].value == 1


def test_devices_hold_what_is_reserved_and_what_is_outside(run):
    """As many bytes per device that its own count of devices changes from 2 to 3."""
    outside_B = outside_allocator_B(STEP)["cuda_context"]
    at_half = replace(SUBJECT, usable_memory_B=run.reserved_B / 2 + outside_B)
    assert readings(at_half, run)["gpus"].value == 2
    assert readings(replace(at_half, usable_memory_B=at_half.usable_memory_B - 1), run)["gpus"].value == 3


def test_what_only_cached_blocks_keep_from_fitting_is_slow(run):
    """One byte less than what is reserved is enough where cached blocks are freed."""
    outside_B = sum(outside_allocator_B(STEP).values())
    enough = replace(SUBJECT, usable_memory_B=run.reserved_B + outside_B)
    assert room_B(enough) == run.reserved_B
    assert retries_to_fit(enough, run) == 0
    assert not any("slowly" in text for text in notes(enough, run))
    tight = replace(SUBJECT, usable_memory_B=run.reserved_B + outside_B - 1)
    retries = by_hand(run, run.reserved_B - 1).retries
    assert retries_to_fit(tight, run) == retries > 0
    assert any("fits, but slowly" in text and str(retries) in text for text in notes(tight, run))
    short = replace(SUBJECT, usable_memory_B=run.peak_B + outside_B - MiB)
    with pytest.raises(DeviceFullError):
        by_hand(run, run.peak_B - MiB)
    assert retries_to_fit(short, run) is None


def test_expandable_segments_reserve_less(run):
    expandable = memory.peak_of_rank(replace(SUBJECT, expandable_segments=True))
    assert expandable.peak_B == run.peak_B
    assert run.peak_B < expandable.reserved_B < run.reserved_B


def test_a_rank_holds_the_context_and_nccls_buffers():
    subject = Subject(build_step(replace(LLAMA, dp_size=2), ["fsdp2"]), 80e9, simulated_device="cuda")
    run = memory.peak_of_rank(subject)
    assert used_B(subject, run) == run.reserved_B + 426 * MiB + 544 * MiB
    four = replace(subject, step=replace(subject.step, ranks=4))
    assert used_B(four, run) - used_B(subject, run) == 144 * MiB


def test_a_sharded_model_is_never_on_the_device_in_full():
    """The fake model is built unsharded; a real one is built without data, or on the host."""
    workload = replace(LLAMA_7B, seq_len=64, dp_size=8, optimizer="sgd_momentum")
    run = memory.peak_of_rank(Subject(build_step(workload, ["fsdp2"]), 80e9, simulated_device="cuda"))
    assert run.reserved_B < 4 * 6.7e9


@pytest.mark.parametrize("capacity_MiB", [2, 3, 12, 50, 99, 400, 1000, 12_001, 20_000])
def test_the_fewest_ranks_are_found_in_few_tries(capacity_MiB):
    subject = Subject(build_step(replace(LLAMA, dp_size=2), ["fsdp2"]), 80e9, simulated_device="cuda")
    tried = []

    def held_B(ranks):
        """Return bytes that shrink with ranks, in segments of 2 MiB."""
        return (12_000 / ranks // 2 * 2 + 5) * MiB

    def peak_of(one):
        tried.append(one.step.ranks)
        return held_B(one.step.ranks)

    made = list(ranks_that_suffice(subject, peak_of, capacity_MiB * MiB))
    enough = [ranks for ranks in range(1, 4097) if held_B(ranks) <= capacity_MiB * MiB]
    powers = [ranks for ranks in enough if ranks & (ranks - 1) == 0]
    assert [one.value for one in made if isinstance(one, Reading)] == [*enough[:1], *powers[:1]]
    assert len(tried) <= 14


@pytest.mark.parametrize("techniques", [["attention"], ["fsdp2", "mixed_precision", "attention"]])
def test_other_sizes_of_a_step_are_built_as_its_own_were(techniques):
    """Without a check of their own; and their live bytes are the same with a short first step."""
    found = []
    step = build_step(replace(LLAMA, num_hidden_layers=6, dp_size=4), techniques)
    dry_run(step, CUDA, found=found)
    assert len(found) == 1
    other = replace(step, workload=replace(step.workload, seq_len=24, micro_batch_size=3))
    if step.ranks > 1:
        other = replace(other, ranks=3)
    full = dry_run(other, CUDA, full=True)
    for reserved in (True, False):
        ours = dry_run(other, CUDA, reserved=reserved, found=found)
        assert (ours.peak_B, ours.by_kind_B) == (full.peak_B, full.by_kind_B)
        assert ours.reserved_B == (full.reserved_B if reserved else None)


def test_the_fewest_ranks_have_room_for_it():
    """Of 12,000 MiB reserved by all ranks together; two have 6,000 + 426 + 544 MiB each."""
    subject = Subject(build_step(replace(LLAMA, dp_size=2), ["fsdp2"]), 80e9, simulated_device="cuda")
    run = memory.peak_of_rank(subject)

    def held(one):
        return used_B(one, run._replace(reserved_B=12_000 * MiB // one.step.ranks))

    for capacity_B, expected in ((6_970 * MiB, 2), (6_970 * MiB - 1, 3)):
        found = ranks_that_suffice(subject, held, capacity_B)
        values = {one.metric: one.value for one in found if isinstance(one, Reading)}
        assert values["ranks_needed"] == expected


@pytest.mark.parametrize(
    "techniques",
    [
        [],
        [("mixed_precision", {}), ("attention", {})],
        [("fsdp2", {}), ("mixed_precision", {}), ("activation_checkpointing", {})],
        [("mixed_precision", {}), ("optimizer", {"name": "adamw_8bit"})],
        [("bf16_states", {})],
    ],
    ids=lambda value: "+".join(name for name, _ in value) or "baseline",
)
def test_a_first_step_made_from_the_second_reserves_what_a_traced_one_does(techniques) -> None:
    step = build_step(replace(LLAMA, dp_size=4), techniques)
    traced = dry_run(step, CUDA)
    made = dry_run(step, CUDA, make_first_step=True)
    assert (made.peak_B, made.reserved_B, made.by_kind_B) == (
        traced.peak_B,
        traced.reserved_B,
        traced.by_kind_B,
    )
