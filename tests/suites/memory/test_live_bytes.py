"""Live bytes over a step: the points of the figure, the viewer's file, and the line at the peak."""

from __future__ import annotations

import linecache
import pickle
from itertools import accumulate
from pathlib import Path

import pytest
from small_steps import CUDA, HOST, LLAMA, make_step
from torch.cuda import _memory_viz

from harness.instruments.memory.memory_timeline import MemoryEvent, OpSite, Timeline
from harness.records import Note, Reading, Unavailable
from suites import training
from suites.memory import suite as memory
from suites.memory.live_bytes import live_before, live_bytes, write_snapshot
from suites.memory.subject import Subject
from suites.training.dry_run.dry_run import dry_run

TRAINING = Path(training.__file__).parent


def test_points_are_the_most_of_their_share_of_the_step():
    """Worked out by hand: 5 B live before, then 1, 2, 4 B and a release, in two shares of two events."""
    first, then = OpSite("forward 0", "a", ()), OpSite("backward 0", "b", ())
    events = [
        MemoryEvent(0, 5, first),
        MemoryEvent(1, 1, first),
        MemoryEvent(2, 2, first),
        MemoryEvent(3, 4, then),
        MemoryEvent(2, -2, then),
    ]
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


def subject(**fields):
    return Subject(make_step(LLAMA), 80e9, simulated_device="cuda", **fields)


def test_a_cell_has_the_timeline_where_its_workload_asks_for_it(tmp_path):
    names = {
        one.metric for one in memory.simulated(subject(), memory.peak_of_rank) if isinstance(one, Reading)
    }
    assert not any(name.startswith("live_memory") for name in names)
    found = list(memory.simulated(subject(timeline=True, snapshot=str(tmp_path)), memory.peak_of_rank))
    names = {one.metric for one in found if isinstance(one, Reading)}
    assert {"live_memory/activations", "live_memory_phase/backward 0"} <= names
    (path,) = tmp_path.iterdir()
    assert path.name.startswith("baseline-")
    assert any(isinstance(one, Note) and "memory_viz" in one.text for one in found)


def test_a_folder_that_does_not_exist_is_one_line(tmp_path):
    with pytest.raises(Unavailable, match="No such file or directory"):
        list(memory.simulated(subject(snapshot=str(tmp_path / "none")), memory.peak_of_rank))
