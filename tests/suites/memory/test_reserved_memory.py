"""Reserved bytes and those outside the allocator, what fits, what could turn that, live bytes of a step."""

import linecache
import pickle
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import pytest
from small_steps import CUDA, HOST, LLAMA, LLAMA_7B, make_step
from torch.cuda import _memory_viz

from harness.instruments.memory.caching_allocator import CachingAllocator, DeviceFullError
from harness.instruments.memory.memory_timeline import MemoryEvent, OpSite, Timeline
from harness.records import Note, Origin, Reading
from suites import training
from suites.memory import subject as assumptions
from suites.memory import suite as memory
from suites.memory.live_bytes import live_before, live_bytes, write_snapshot
from suites.memory.subject import Subject, room_B
from suites.memory.thresholds import ranks_that_suffice, used_B
from suites.training.dry_run.dry_run import dry_run
from suites.training.dry_run.estimates import host_memory_B
from suites.training.dry_run.largest_batch import Fit, fit_of, other_choices, outside_allocator_B
from suites.training.techniques import build_step

MiB = 1024**2
TRAINING = Path(training.__file__).parent

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
    assert fit_of(STEP, run, enough.target) == Fit(True, 0)
    tight = replace(SUBJECT, usable_memory_B=run.reserved_B + outside_B - 1)
    retries = by_hand(run, run.reserved_B - 1).retries
    assert retries > 0
    assert fit_of(STEP, run, tight.target) == Fit(True, retries)
    of_enough, of_tight = (
        [one.text for one in memory.simulated(subject, lambda _: run) if isinstance(one, Note)]
        for subject in (enough, tight)
    )
    assert not any("slowly" in text for text in of_enough)
    assert any("fits, but slowly" in text and str(retries) in text for text in of_tight)
    short = replace(SUBJECT, usable_memory_B=run.peak_B + outside_B - MiB)
    with pytest.raises(DeviceFullError):
        by_hand(run, run.peak_B - MiB)
    assert not fit_of(STEP, run, short.target).fits


def of_two_ranks():
    return Subject(build_step(replace(LLAMA, dp_size=2), ["fsdp2"]), 80e9, simulated_device="cuda")


def test_a_rank_holds_the_context_and_nccls_buffers_and_the_fewest_ranks_have_room_for_them():
    """Of 12,000 MiB reserved by all ranks together; two have 6,000 + 426 + 544 MiB each."""
    subject = of_two_ranks()
    run = memory.peak_of_rank(subject)
    assert used_B(subject, run) == run.reserved_B + 426 * MiB + 544 * MiB
    four = replace(subject, step=replace(subject.step, ranks=4))
    assert used_B(four, run) - used_B(subject, run) == 144 * MiB

    def held(one):
        return used_B(one, run._replace(reserved_B=12_000 * MiB // one.step.ranks))

    for capacity_B, expected in ((6_970 * MiB, 2), (6_970 * MiB - 1, 3)):
        found = ranks_that_suffice(subject, held, capacity_B)
        values = {one.metric: one.value for one in found if isinstance(one, Reading)}
        assert values["ranks_needed"] == expected


def test_points_are_the_most_of_their_share_of_the_step():
    """Worked out by hand: 5 B live before, then 1, 2, 4 B and a release, in two shares of two events."""
    first, then = OpSite("forward 0", "a", ()), OpSite("backward 0", "b", ())
    deltas = [(0, 5, first), (1, 1, first), (2, 2, first), (3, 4, then), (2, -2, then)]
    events = [MemoryEvent(*one) for one in deltas]
    timeline = Timeline(events, ["parameters", "activations", "activations", "gradients"], 1, 1)
    found = live_bytes(timeline, points=2)
    assert found.by_kind_B == ((5, 5), (0, 4), (0, 0), (3, 3), (0, 0), (0, 0))
    assert found.phases == {"forward 0": 0, "backward 0": 1}


@pytest.mark.parametrize("device", [HOST, CUDA])
@pytest.mark.parametrize("techniques", ["", "autocast flash full"])
def test_the_peak_is_among_the_points_and_in_the_viewers_file(tmp_path, device, techniques):
    found = dry_run(make_step(LLAMA, techniques), device)
    points = [sum(point) for point in zip(*live_bytes(found.timeline).by_kind_B, strict=True)]
    assert max(points) == found.peak_B
    path = tmp_path / "step.pickle"
    write_snapshot(found.timeline, path)
    snapshot = pickle.loads(path.read_bytes())
    (trace,) = snapshot["device_traces"]
    signs = {"alloc": 1, "free_completed": -1}
    live_B = list(accumulate(signs[one["action"]] * one["size"] for one in trace))
    assert max(live_B[len(live_before(found.timeline)) :]) == found.peak_B
    assert "<script" in _memory_viz.trace_plot(snapshot)


def test_the_peak_names_the_line_of_the_model_that_its_operation_belongs_to():
    """In the backward pass, which torch runs without Python, the line of the forward pass."""
    step = make_step(LLAMA, vocab_size=30, intermediate_size=32, seq_len=128, micro_batch_size=4)
    for place in (dry_run(step, CUDA).place, dry_run(step, HOST).place):
        assert place.phase == "backward 0"
        assert "softmax" in place.operation
        file, _, line = place.line.partition(":")
        assert "softmax" in linecache.getline(str(TRAINING / file), int(line))


SMALL = {
    "num_hidden_layers": 2, "hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4,
    "num_key_value_heads": 4, "vocab_size": 4096, "max_position_embeddings": 64, "seq_len": 16, "dp_size": 4,
    "device_memory_B": 80e9, "simulated_device": "cuda", "search": "largest_micro_batch",
    "optimizer_impl": "fused",
}  # fmt: skip


def a_subject(*techniques):
    return memory.apply_techniques(memory.build(SMALL, seed=0), techniques)


def test_foreach_turns_the_answer_where_its_temporaries_have_no_room():
    subject = a_subject()
    fused_B = memory.peak_of_rank(subject).reserved_B
    outside_B = sum(outside_allocator_B(subject.step).values())
    tight, ample = (
        {one.metric.removeprefix("assumption/"): one.value for one in
         assumptions.readings(replace(subject, usable_memory_B=usable_B), 1, memory.peak_of_rank)}
        for usable_B in (fused_B + 2**20 + outside_B, 60e9)
    )  # fmt: skip
    assert tight["optimizer_impl=default/fits"] == tight["optimizer_impl=default/largest_micro_batch"] == 0
    assert set(ample.values()) == {1}
    assert "optimizer_impl=for_loop/fits" not in ample  # whose temporaries are smaller still
    stated = a_subject(("optimizer", {"impl": "fused"}), ("loss", {"chunks": 2}))
    assert list(other_choices(stated.step)) == []


def test_states_on_the_host_are_sixteen_bytes_per_parameter_over_all_ranks():
    subject = a_subject(("fsdp2", {"cpu_offload": True}))
    counts = memory.count_model(subject)
    assert host_memory_B(subject.step, counts) == 16 * counts.parameters / 4
    assert host_memory_B(a_subject(("fsdp2", {})).step, counts) == 0
