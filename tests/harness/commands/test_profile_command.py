"""`python -m harness.profile`: what it prints and writes, and how it refuses mistakes."""

import gzip
import json
import subprocess
import sys

import pytest
from kineto_traces import Writer, write_large

from harness.commands.profile import main
from harness.config.code_fingerprint import ROOT
from harness.config.validation import ConfigError
from harness.config.workloads import trace_digest, workload_from_trace
from harness.instruments.traces.activity import Activity
from harness.instruments.traces.breakdown import breakdown
from harness.instruments.traces.factors import layer_names
from harness.instruments.traces.kineto import read_trace, read_traces
from harness.instruments.traces.output import OWN_TRACKS, PER_RANK, critical_path

NCCL = "ncclDevKernel_AllGather_RING_LL"


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


def test_the_answer_has_the_sentence_shares_and_factors(tmp_path, capsys):
    folder = two_ranks(tmp_path)
    assert main([str(folder), "model_FLOP=1e9", "peak=1e13", "frequency=1.5"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("50 % exposed all-gather, 33 % computing, ")
    for text in ("sum", "100.0", "theoretical", "0.100", "not separated: instruction, utilisation", "rank 1"):
        assert text in out
    assert "Missing: theoretical" not in out
    assert "Missing: instruction" in out


def test_files_of_ranks_and_their_folder_are_the_same(tmp_path, capsys):
    folder = two_ranks(tmp_path)
    assert main([str(folder)]) == 0
    of_folder = capsys.readouterr().out
    assert main([str(folder / "rank1.json"), str(folder / "rank0.json")]) == 0
    assert capsys.readouterr().out == of_folder


def test_against_itself_nothing_is_named(tmp_path, capsys):
    folder = two_ranks(tmp_path)
    assert main([str(folder), f"against={folder}"]) == 0
    assert "the reference" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["no/such.json"], "no/such.json: no trace can be read"),
        (["{trace}", "model_FLOPS=1"], "did you mean model_FLOP?"),
        (["{trace}", "model_FLOP=1e9"], "needs both model_FLOP= and peak="),
        (["{trace}", "model_FLOP=0", "peak=1"], "model_FLOP=0: expected a number above 0"),
        (["{trace}", "model_FLOP=1", "peak=h1000"], "one of "),
        (["{trace}", "clocks=fast"], "clocks=fast: expected one of aligned, recorded"),
        (["{trace}", "frequency=1", "frequency=2"], "frequency: given twice"),
        (["out=x"], "expected a trace"),
        (["{trace}", "out=/proc/x"], "out=/proc/x: cannot write"),
        (["{trace}", "{trace}"], "rank 0 is there twice"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(tmp_path, capsys, words, expected):
    trace = two_ranks(tmp_path) / "rank0.json"
    assert main([word.format(trace=trace) for word in words]) == 2
    error = capsys.readouterr().err
    assert error.startswith("harness.profile: ")
    assert expected in error
    assert error.count("\n") == 1


def test_a_device_of_conf_hardware_gives_the_peak(tmp_path, capsys):
    assert main([str(two_ranks(tmp_path)), "model_FLOP=989e9", "peak=h100_80gb"]) == 0
    theoretical = next(
        line for line in capsys.readouterr().out.splitlines() if line.startswith("theoretical")
    )
    assert float(theoretical.split()[-1]) == pytest.approx(1.0, rel=0.01)  # ms


def test_perfetto_has_the_events_and_our_tracks_with_the_shares(tmp_path):
    folder = two_ranks(tmp_path)
    out = tmp_path / "out"
    assert main([str(folder), f"out={out}"]) == 0
    events = json.loads(gzip.decompress((out / "perfetto.json.gz").read_bytes()))["traceEvents"]
    found = breakdown(read_traces(folder))
    ours = [event for event in events if event.get("cat") == "breakdown"]
    names = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in events
        if event["name"] == "thread_name"
    }
    for rank in found.ranks:
        for track in set(OWN_TRACKS.values()):
            drawn = sum(
                event["dur"]
                for event in ours
                if event["pid"] == rank.rank * PER_RANK and names[event["pid"], event["tid"]] == track
            )
            shares = sum(sum(s.by_step_ns) for s in rank.shares if OWN_TRACKS[s.state] == track)
            assert drawn * 1000 == pytest.approx(shares, abs=1e-3)
    complete = [
        event
        for event in events
        if event["ph"] == "X" and event.get("cat") not in ("breakdown", "critical path")
    ]
    assert len(complete) == sum(len(rank.activity.trace) for rank in found.ranks)
    assert min(event["ts"] for event in complete) == 0


def test_perfetto_has_the_critical_path_of_every_step(tmp_path):
    folder = two_ranks(tmp_path)
    out = tmp_path / "out"
    assert main([str(folder), f"out={out}"]) == 0
    events = json.loads(gzip.decompress((out / "perfetto.json.gz").read_bytes()))["traceEvents"]
    found = breakdown(read_traces(folder))
    path = [event for event in events if event.get("cat") == "critical path"]
    expected = [part for step in range(len(found.step_numbers)) for part in critical_path(found, step)]
    assert [event["name"] for event in path] == [f"rank {found.ranks[part.rank].rank}" for part in expected]
    assert sum(event["dur"] for event in path) * 1000 == sum(p.end_ns - p.start_ns for p in expected)
    assert {event["pid"] for event in path}.isdisjoint(
        event["pid"] for event in events if event.get("cat") not in (None, "critical path")
    )


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
    assert of == [
        ("gemm", "Linear_0"),
        ("gemm", "Linear_1"),
        ("after", "Model_0"),
        ("dgemm", "Linear_1"),
        ("dgemm", "Linear_0"),
    ]


def test_a_large_trace_is_read_as_written(tmp_path):
    path = tmp_path / "large.json"
    count = write_large(path, 8_000)
    trace = read_trace(path)
    assert len(trace) == count
    found = breakdown((trace,))
    assert len(found.step_numbers) == 4
    computing = next(share for share in found.shares if share.name == "computing")
    # Of 500 kernels, each of 8 us, one in 20 communicates; as much reaches out of a step as into it.
    assert computing.by_step_ns[1] == 475 * 8_000


FIELDS = {
    "trace": {"type": "str", "optional": True},
    "steps": {"type": "int", "default": 3},
    "source": {"type": "str"},
}
SUITE = {"fields": FIELDS, "workload_from": None, "workload_defaults": {}, "trace_defaults": {"steps": 5}}


def test_a_suite_takes_a_trace_as_its_only_workload(tmp_path):
    folder = two_ranks(tmp_path)
    path = folder / "rank0.json"
    (name,) = workloads = workload_from_trace({**SUITE, "trace": str(path)})
    assert name == "rank0"
    assert workloads[name] == {"trace": str(path), "steps": 5, "source": "the trace rank0.json"}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"fields": {}}, "this suite reads no trace"),
        ({"trace_defaults": {"step": 1}}, "suite.trace_defaults.step: no such name; did you mean steps?"),
        ({"trace": "no.json"}, "suite.trace: no.json: no trace can be read"),
        ({"workload_from": "config.json"}, "give one of the two"),
    ],
)
def test_a_suite_refuses_a_trace_that_it_cannot_use(tmp_path, changed, expected):
    path = two_ranks(tmp_path) / "rank0.json"
    with pytest.raises(ConfigError) as error:
        workload_from_trace({**SUITE, "trace": str(path), **changed})
    assert expected in str(error.value)


def steps_without_kernels(folder):
    one = Writer(rank=0)
    one.step(0, 0, 1_000)
    one.kernel("gemm", 2_000, 3_000, called=1_500)
    one.write(folder)


def steps_of_one_rank_alone(folder):
    for rank in range(2):
        one = Writer(rank=rank, world_size=2)
        one.step(rank, 0, 1_000)
        one.kernel("gemm", 200, 300, called=100)
        one.write(folder)


@pytest.mark.parametrize(
    ("write", "expected"),
    [
        (steps_without_kernels, "no kernel and no operator runs within the steps"),
        (steps_of_one_rank_alone, "no step in common with the other ranks"),
    ],
)
def test_a_trace_that_cannot_be_broken_down_is_refused_before_the_run(tmp_path, write, expected):
    write(tmp_path)
    with pytest.raises(ConfigError, match=f"suite.trace: .*{expected}"):
        workload_from_trace({**SUITE, "trace": str(tmp_path)})


def test_a_relative_path_of_a_trace_is_made_absolute(tmp_path, monkeypatch):
    """A worker on a cluster has another working directory."""
    path = two_ranks(tmp_path) / "rank0.json"
    monkeypatch.chdir(path.parent)
    (workload,) = workload_from_trace({**SUITE, "trace": path.name}).values()
    assert workload["trace"] == str(path)


def test_the_parent_checks_a_trace_without_torch(tmp_path):
    path = two_ranks(tmp_path) / "rank0.json"
    code = (
        "import sys\nfrom pathlib import Path\nfrom harness.config import workloads\n"
        f"workloads._check(Path({str(path)!r}))\nassert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_the_bytes_of_a_trace_are_part_of_a_cells_identity(tmp_path):
    folder = two_ranks(tmp_path)
    other = folder / "copy"
    other.mkdir()
    for rank in (0, 1):
        (other / f"rank{rank}.json").write_bytes((folder / f"rank{rank}.json").read_bytes())
    before = trace_digest(str(other))
    trace_digest.cache_clear()
    (other / "rank1.json").write_bytes((folder / "rank0.json").read_bytes())
    assert trace_digest(str(other)) != before
