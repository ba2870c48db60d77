"""What `python -m harness.profile` prints: tables that fit, what follows from the trace, and patterns."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kineto_traces import Writer

from harness.commands.profile import main, patterns
from harness.config.validation import ConfigError
from harness.instruments.traces.output import fitted, shortened_name

LONG = (
    "void cutlass::device_kernel<" + ", ".join(f"cute::tuple<cute::C<{i}>>" for i in range(60)) + ">(Params)"
)
MS = 1_000_000


def trace_of(tmp_path, launches=40, gap=20_000, world_size=1, kernels=(), **given):
    """Write ranks with small kernels, one every `gap` nanoseconds, each half as long."""
    for rank in range(world_size):
        one = Writer(rank=rank, world_size=world_size, **given)
        for number in range(2):
            begin = number * launches * gap
            one.step(number, begin, begin + launches * gap)
            for i in range(launches):
                at = begin + i * gap
                one.kernel(LONG if i % 2 else "gemm", at + gap // 2, at + gap, called=at + gap // 4)
        for name, start, end in kernels:
            one.kernel(name, start, end, called=start, stream=9)
        one.write(tmp_path)
    return tmp_path


def tables_of(out):
    """Return the lines of the tables."""
    return [line for block in out.split("\n\n")[2:] for line in block.split("\n")]


@pytest.mark.parametrize("columns", [60, 80, 120, 400])
@pytest.mark.parametrize("world_size", [1, 3])
def test_tables_fit_the_terminal(tmp_path, capsys, monkeypatch, columns, world_size):
    monkeypatch.setenv("COLUMNS", str(columns))
    collective = ("ncclDevKernel_AllReduce_" + "x" * 300, 20_000, 300_000)
    assert main([str(trace_of(tmp_path, world_size=world_size, kernels=[collective]))]) == 0
    lines = tables_of(capsys.readouterr().out)
    assert max(map(len, lines)) <= columns
    assert any(line.startswith("rank 2") for line in lines) == (world_size == 3)
    assert any("void" in line and "…" in line for line in lines)


def test_eighty_columns_without_a_terminal(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert main([str(trace_of(tmp_path))]) == 0
    assert max(map(len, tables_of(capsys.readouterr().out))) <= 80


def test_whole_names_are_in_the_file(tmp_path, capsys):
    assert main([str(trace_of(tmp_path)), f"out={tmp_path / 'out'}"]) == 0
    assert LONG in (tmp_path / "out" / "breakdown.txt").read_text()


@pytest.mark.parametrize(
    ("length", "shown"),
    [
        (60, "void ns::kernel<int, a<b>, c>(int*)"),
        (33, "void ns::kernel<int, a<b>, c>(…)"),
        (28, "void ns::kernel<int,…, c>(…)"),
        (12, "void n…>(…)"),
    ],
)
def test_a_kernel_keeps_its_function_longest(length, shown):
    found = shortened_name("void ns::kernel<int, a<b>, c>(int*)", length)
    assert len(found) <= length
    assert found.startswith("void n")
    assert found == shown or length == 12


@settings(deadline=None)
@given(st.text(alphabet="ab<>() :…", max_size=60), st.integers(3, 70))
def test_any_name_fits(name, length):
    assert len(shortened_name(name, length)) <= length


def test_columns_that_do_not_fit_follow_below():
    head = ["Rank", *(f"share of state {i}" for i in range(9))]
    lines = fitted(head, [["rank 0", *map(str, range(9))]], 60)
    assert max(map(len, lines)) <= 60
    assert sum(line.startswith("rank 0") for line in lines) > 1
    shown = [word for line in lines if line.startswith("rank 0") for word in line.split()[2:]]
    assert shown == [str(i) for i in range(9)]


def test_advice_on_launch_gaps_has_the_numbers_of_the_trace(tmp_path, capsys):
    """40 launches per step, 20 us apart; half of each gap of 10 us is idle: 0.4 of 0.8 ms."""
    assert main([str(trace_of(tmp_path))]) == 0
    out = capsys.readouterr().out
    (line,) = [line for line in out.splitlines() if line.startswith("Launch gaps: ")]
    assert line == (
        "Launch gaps: 40 launches per step, one every 20 µs on the host, each for 10 µs of work (medians). "
        "If CUDA graphs (torch.compile, mode=reduce-overhead) replayed all launches, at least 0.400 ms of "
        "0.800 ms would remain."
    )
    assert "baseline" not in out


def test_pauses_of_the_host_are_no_gain_of_graphs(tmp_path, capsys):
    one = Writer()
    one.step(0, 0, 10 * MS)
    one.kernel("gemm", 1 * MS, 5 * MS, called=MS - 10)
    one.host_event("aten::item", 5 * MS, 9 * MS)
    one.kernel("gemm", 9 * MS, 10 * MS, called=9 * MS - 10)
    assert main([str(one.write(tmp_path))]) == 0
    out = capsys.readouterr().out
    assert "Pauses of more than 100 µs: 2 per step, 5.000 ms of 5.000 ms; in the longest" in out
    assert "the host is in aten::item." in out
    assert "would remain" not in out


def test_graphs_that_are_there_are_not_advised(tmp_path, capsys):
    path = trace_of(tmp_path) / "rank0.json"
    path.write_text(path.read_text().replace("cudaLaunchKernel", "cudaGraphLaunch"))
    assert main([str(path)]) == 0
    out = capsys.readouterr().out
    assert "Graphs launch 100 % of the kernels (40 per step)." in out
    assert "would remain" not in out


def test_without_launch_gaps_there_is_no_advice(tmp_path, capsys):
    one = Writer()
    one.step(0, 0, MS)
    one.kernel("gemm", 0, MS, called=0)
    assert main([str(one.write(tmp_path))]) == 0
    assert "Launch gaps" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("loader", "expected"), [("Single", "num_workers=0"), ("MultiProcessing", "still waits")]
)
def test_advice_on_data_follows_from_the_loader(tmp_path, capsys, loader, expected):
    name = f"_{loader}{'ProcessData' if loader == 'Single' else 'Data'}LoaderIter"
    one = Writer()
    one.step(0, 0, MS)
    one.annotation(f"enumerate(DataLoader)#{name}.__next__", 0, MS // 2)
    one.kernel("gemm", MS // 2, MS, called=MS // 2)
    assert main([str(one.write(tmp_path))]) == 0
    assert expected in capsys.readouterr().out


def test_how_steps_were_found_and_what_communicates_is_in_the_answer(tmp_path, capsys):
    one = Writer()
    one.kernel("gemm", 0, 6 * MS, called=0)
    one.kernel("ncclDevKernel_AllReduce", 4 * MS, 8 * MS, called=1, stream=9)
    one.kernel("gemm_reduce_scatter", 8 * MS, 10 * MS, called=2)
    assert main([str(one.write(tmp_path))]) == 0
    out = capsys.readouterr().out
    assert "the whole trace, from its first to its last event, is taken as one step" in out
    assert "Communication: 6.000 ms per step, 4.000 ms hidden behind computing and 2.000 ms exposed." in out
    assert "Both: 2.000 ms per step are in kernels that compute and communicate (gemm_reduce_scatter)" in out
    assert "(1 step)" in out


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ()),
        ("push", ("push",)),
        ("[push]", ("push",)),
        ("[push,pull]", ("push", "pull")),
        ("['push', \"pull\"]", ("push", "pull")),
        ("[a{1,2},(b|c,d)]", ("a{1,2}", "(b|c,d)")),
        ("^x[yz]$", ("^x[yz]$",)),
    ],
)
def test_patterns_are_one_or_a_list(text, expected):
    assert patterns(text) == expected


@pytest.mark.parametrize("text", ["(", "[a,*]", "[]", "[a,,b]", "x{2,1}", "(" * 5000, "[" * 9])
def test_a_bad_pattern_is_one_line(tmp_path, capsys, text):
    with pytest.raises(ConfigError, match="communication="):
        patterns(text)
    assert main([str(trace_of(tmp_path)), f"communication={text}"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert len(error) <= 300


def test_a_pattern_names_communication(tmp_path, capsys):
    folder = trace_of(tmp_path, kernels=[("my_push", 0, 400_000)])
    assert main([str(folder), "communication=[my_push]"]) == 0
    out = capsys.readouterr().out
    assert "Communication: " in out
    assert any(line.startswith("my_push") and "pattern" in line for line in out.splitlines())
