"""`python -m harness.profile`: what it prints and writes, what it advises, and how it refuses mistakes."""

import gzip
import json

import pytest
from kineto_traces import Writer

from harness.commands.profile import main
from harness.config.validation import ConfigError
from harness.config.workloads import trace_digest, workload_from_trace
from harness.instruments.traces.activity import Activity
from harness.instruments.traces.breakdown import breakdown
from harness.instruments.traces.factors import layer_names
from harness.instruments.traces.kineto import read_trace, read_traces
from harness.instruments.traces.output import OWN_TRACKS, PER_RANK, critical_path

NCCL = "ncclDevKernel_AllGather_RING_LL"
LONG = (
    "void cutlass::device_kernel<" + ", ".join(f"cute::tuple<cute::C<{i}>>" for i in range(60)) + ">(Params)"
)
MS = 1_000_000


def two_ranks(folder, world_size=2):
    for rank in range(2):
        one = Writer(rank=rank, world_size=world_size)
        for number in range(3):
            begin = number * 1_000_000
            one.step(number, begin, begin + 1_000_000)
            one.kernel("gemm <&>", begin + 20_000, begin + 300_000 + 100_000 * rank, called=begin + 10_000)
            one.kernel(
                NCCL, begin + 300_000 + 100_000 * rank, begin + 900_000, called=begin + 15_000, stream=13
            )
        one.write(folder)
    return folder


def launching(tmp_path, kernels=()):
    """Write a rank with 40 small kernels in each of two steps, one every 20 us, each half as long."""
    launches, gap = 40, 20_000
    tmp_path.mkdir(exist_ok=True)
    one = Writer(rank=0, world_size=1)
    for number in range(2):
        begin = number * launches * gap
        one.step(number, begin, begin + launches * gap)
        for at in range(begin, begin + launches * gap, gap):
            one.kernel(LONG if at % 40_000 else "gemm", at + gap // 2, at + gap, called=at + gap // 4)
    for name, start, end in kernels:
        one.kernel(name, start, end, called=start, stream=9)
    one.write(tmp_path)
    return tmp_path


def printed(capsys, *words):
    assert main([str(word) for word in words]) == 0
    return capsys.readouterr().out


def test_the_answer_has_the_sentence_shares_and_factors(tmp_path, capsys):
    folder = two_ranks(tmp_path)
    out = printed(capsys, folder, "model_FLOP=1e9", "peak=1e13", "frequency=1.5")
    assert out.startswith("50 % exposed all-gather, 33 % computing, ")
    for text in ("100.0", "not separated: instruction, utilisation", "Missing: instruction"):
        assert text in out
    lines = printed(capsys, folder, "model_FLOP=989e9", "peak=h100_80gb").splitlines()
    theoretical = next(line for line in lines if line.startswith("theoretical"))
    assert float(theoretical.split()[-1]) == pytest.approx(1.0, rel=0.01)  # ms
    of_folder = printed(capsys, folder)
    assert printed(capsys, folder / "rank1.json", folder / "rank0.json") == of_folder
    assert "the reference" not in printed(capsys, folder, f"against={folder}")


def test_perfetto_has_the_events_our_tracks_with_the_shares_and_the_critical_path(tmp_path, capsys):
    folder = two_ranks(tmp_path)
    printed(capsys, folder, f"out={tmp_path / 'out'}")
    events = json.loads(gzip.decompress((tmp_path / "out/perfetto.json.gz").read_bytes()))["traceEvents"]
    found = breakdown(read_traces(folder))
    ours = [event for event in events if event.get("cat") == "breakdown"]
    path = [event for event in events if event.get("cat") == "critical path"]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    for rank in found.ranks:
        for track in set(OWN_TRACKS.values()):
            of_rank = [event for event in ours if event["pid"] == rank.rank * PER_RANK]
            drawn = sum(event["dur"] for event in of_rank if names[event["pid"], event["tid"]] == track)
            shares = sum(sum(s.by_step_ns) for s in rank.shares if OWN_TRACKS[s.state] == track)
            assert drawn * 1000 == pytest.approx(shares, abs=1e-3)
    complete = [event for event in events if event["ph"] == "X" and event not in ours and event not in path]
    assert len(complete) == sum(len(rank.activity.trace) for rank in found.ranks)
    assert min(event["ts"] for event in complete) == 0
    expected = [part for step in range(len(found.step_numbers)) for part in critical_path(found, step)]
    assert [event["name"] for event in path] == [f"rank {found.ranks[part.rank].rank}" for part in expected]
    assert sum(event["dur"] for event in path) * 1000 == sum(p.end_ns - p.start_ns for p in expected)
    others = {event["pid"] for event in events if event.get("cat") not in (None, "critical path")}
    assert {event["pid"] for event in path}.isdisjoint(others)


def test_layers_are_modules_and_backward_has_those_of_forward(tmp_path):
    one = Writer()
    one.step(0, 0, 1000)
    one.host_event("nn.Module: Model_0", 0, 400, category="python_function")
    one.host_event("nn.Module: Linear_0", 10, 100, category="python_function")
    one.host_event("nn.Module: Linear_1", 110, 200, category="python_function")
    for i, at in enumerate((20, 120)):
        one.host_event("aten::addmm", at, at + 10, **{"Sequence number": 5 + i, "Fwd thread id": 0})
        one.kernel("gemm", at + 20, at + 30, called=at + 1)
    for i, at in enumerate((500, 600)):
        name = "autograd::engine::evaluate_function: AddmmBackward0"
        one.host_event(name, at, at + 50, thread=101, **{"Sequence number": 6 - i, "Fwd thread id": 1})
        one.kernel("dgemm", at + 20, at + 30, called=at + 1, thread=101)
    one.kernel("after", 300, 310, called=250)
    trace = read_trace(one.write(tmp_path))
    layer, names = layer_names(Activity(trace))
    of = [(trace.name(e), names[layer[e]]) for e in range(len(trace)) if trace.kind[e] == 3]
    forward = [("gemm", "Linear_0"), ("gemm", "Linear_1"), ("after", "Model_0")]
    assert of == [*forward, ("dgemm", "Linear_1"), ("dgemm", "Linear_0")]


def test_tables_fit_the_terminal_and_the_file_has_whole_names(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    _, _, *tables = printed(capsys, launching(tmp_path)).split("\n\n")
    assert max(len(line) for table in tables for line in table.split("\n")) <= 60
    printed(capsys, tmp_path / "rank0.json", f"out={tmp_path / 'out'}")
    assert LONG in (tmp_path / "out/breakdown.txt").read_text()


def test_advice_on_launch_gaps_has_the_numbers_of_the_trace(tmp_path, capsys):
    """40 launches per step, 20 us apart; half of each gap of 10 us is idle: 0.4 of 0.8 ms."""
    out = printed(capsys, launching(tmp_path))
    (line,) = [line for line in out.splitlines() if line.startswith("Launch gaps: ")]
    assert all(part in line for part in ("40 launches", "20 µs", "10 µs", "0.400 ms of 0.800 ms"))
    path = tmp_path / "rank0.json"
    path.write_text(path.read_text().replace("cudaLaunchKernel", "cudaGraphLaunch"))
    out = printed(capsys, path)
    assert "Graphs launch 100 % of the kernels (40 per step)." in out
    assert "would remain" not in out


def test_pauses_of_the_host_are_no_gain_of_graphs(tmp_path, capsys):
    one = Writer()
    one.step(0, 0, 10 * MS)
    one.kernel("gemm", 1 * MS, 5 * MS, called=MS - 10)
    one.host_event("aten::item", 5 * MS, 9 * MS)
    one.kernel("gemm", 9 * MS, 10 * MS, called=9 * MS - 10)
    out = printed(capsys, one.write(tmp_path))
    assert "Pauses of more than 100 µs: 2 per step, 5.000 ms of 5.000 ms; in the longest" in out
    assert "would remain" not in out


def test_how_steps_were_found_and_what_communicates_is_in_the_answer(tmp_path, capsys):
    one = Writer()
    one.kernel("gemm", 0, 6 * MS, called=0)
    one.kernel("ncclDevKernel_AllReduce", 4 * MS, 8 * MS, called=1, stream=9)
    one.kernel("gemm_reduce_scatter", 8 * MS, 10 * MS, called=2)
    out = printed(capsys, one.write(tmp_path))
    assert "Communication: 6.000 ms per step, 4.000 ms hidden behind computing and 2.000 ms exposed." in out
    assert "Both: 2.000 ms per step are in kernels that compute and communicate (gemm_reduce_scatter)" in out
    folder = launching(tmp_path / "pushed", kernels=[("my_push", 0, 400_000)])
    lines = printed(capsys, folder, "communication=[my_push]").splitlines()
    assert any(line.startswith("my_push") and "pattern" in line for line in lines)


FIELDS = {
    "trace": {"type": "str", "optional": True},
    "steps": {"type": "int", "default": 3},
    "source": {"type": "str"},
}
SUITE = {"fields": FIELDS, "workload_from": None, "workload_defaults": {}, "trace_defaults": {"steps": 5}}


def test_a_suite_takes_a_trace_as_its_only_workload(tmp_path, monkeypatch):
    """Its path is made absolute: a worker on a cluster has another working directory."""
    path = two_ranks(tmp_path) / "rank0.json"
    monkeypatch.chdir(tmp_path)
    for given_path in (str(path), path.name):
        workloads = workload_from_trace({**SUITE, "trace": given_path})
        assert workloads == {"rank0": {"trace": str(path), "steps": 5, "source": "the trace rank0.json"}}


def without_kernels(folder):
    one = Writer(rank=0)
    one.step(0, 0, 1_000)
    one.kernel("gemm", 2_000, 3_000, called=1_500)
    one.write(folder)


def of_one_rank_alone(folder):
    for rank in range(2):
        one = Writer(rank=rank, world_size=2)
        one.step(rank, 0, 1_000)
        one.kernel("gemm", 200, 300, called=100)
        one.write(folder)


@pytest.mark.parametrize(
    ("write", "changed", "expected"),
    [
        (two_ranks, {"trace_defaults": {"step": 1}}, "suite.trace_defaults.step: no such name; did you mean"),
        (two_ranks, {"trace": "no.json"}, "suite.trace: no.json: no trace can be read"),
        (without_kernels, {}, "no kernel and no operator runs within the steps"),
        (of_one_rank_alone, {}, "no step in common with the other ranks"),
    ],
)
def test_a_suite_refuses_a_trace_that_it_cannot_use(tmp_path, write, changed, expected):
    write(tmp_path)
    with pytest.raises(ConfigError) as error:
        workload_from_trace({**SUITE, "trace": str(tmp_path), **changed})
    assert expected in str(error.value)


def test_the_bytes_of_a_trace_are_part_of_a_cells_identity(tmp_path):
    folder = two_ranks(tmp_path)
    before = trace_digest(str(folder))
    trace_digest.cache_clear()
    (folder / "rank1.json").write_bytes((folder / "rank0.json").read_bytes())
    assert trace_digest(str(folder)) != before
