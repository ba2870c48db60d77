"""Whatever a file contains, it is read, or refused in one line of at most 300 characters."""

import gzip
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kineto_traces import Writer

from harness.commands.profile import main


def document():
    one = Writer()
    one.step(0, 0, 1_000_000)
    one.host_event("aten::mm", 5_000, 100_000)
    one.kernel("gemm", 100_000, 400_000, called=10_000, grid=[1, 1, 1])
    one.kernel("ncclDevKernel", 300_000, 500_000, called=20_000, **{"Collective name": "allreduce", "Seq": 3})
    return json.loads(one.text())


def lasting(text):
    """Return a trace in which that is how long the last event takes."""
    content = document()
    content["traceEvents"][-1]["dur"] = "HERE"
    return json.dumps(content).replace('"HERE"', text).encode()


def with_steps(*steps, kernel_at=None):
    one = Writer()
    for number, (start, end) in enumerate(steps):
        one.step(number, start, end)
    if kernel_at is not None:
        one.kernel("gemm", kernel_at + 5, kernel_at + 9, called=kernel_at)
    return one.text().encode()


GOOD = json.dumps(document()).encode()
LONG = '{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "' + "k" * 3000 + '", "ts": "x"}]}'
PAGE = '{"traceEvents": [{"ph": "X", "cat": "devtools.timeline", "name": "Paint", "ts": 1, "dur": 2}]}'
BAD = {
    "huge": (lasting("1e308"), "out of range"),
    "a string": (lasting('"12"'), "not a number"),
    "NaN": (lasting("NaN"), "not valid JSON"),
    "negative": (lasting("-5"), "ends before it starts"),
    "empty": (b"", "is empty"),
    "truncated": (GOOD[:-300], "is truncated"),
    "truncated gzip": (gzip.compress(GOOD)[:-60], "the gzip file is truncated"),
    "binary": (b"SQLite format 3\0", "Nsight"),
    "a list": (b'[{"ph": "X"}]', "of another tool"),
    "not JSON": (b"{'traceEvents': []}", "is not valid JSON"),
    "deep": (b'{"traceEvents": ' + b"[" * 100_000, ""),
    "a long name": (LONG.encode(), ""),
    "a page's trace": (PAGE.encode(), "no operators and no kernels"),
    "no events": (with_steps((0, 10)), "no operators and no kernels"),
    "overlapping steps": (with_steps((0, 9_000), (4_000, 12_000), kernel_at=60), "step 1 begins before"),
    "no kernels in steps": (with_steps((0, 100), kernel_at=900), "ProfilerActivity.CUDA"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_used_is_refused_in_one_line(tmp_path, capsys, name):
    content, expected = BAD[name]
    path = tmp_path / f"{'n' * 240 if name == 'deep' else 'rank0'}.json"
    path.write_bytes(content)
    assert main([str(path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("harness.profile: ")
    assert expected in error
    assert error.count("\n") == 1
    assert len(error) <= 301


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=4,
)
PLACES = [
    *(("traceEvents", -1, key) for key in ("ph", "name", "cat", "pid", "tid", "ts", "dur", "args")),
    *(("traceEvents", -1, "args", key) for key in ("correlation", "External id", "stream", "device", "grid")),
    *(("traceEvents", -1, "args", key) for key in ("Collective name", "Seq", "In msg nelems")),
    *(("distributedInfo", key) for key in ("rank", "world_size", "pg_config")),
    *((key,) for key in ("traceEvents", "distributedInfo", "deviceProperties", "baseTimeNanoseconds")),
    ("host_name",),
]


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.sampled_from(PLACES), value=ANY)
def test_any_value_at_any_place_is_read_or_refused(tmp_path, capsys, place, value):
    content = document()
    inner = content
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps(content))
    status = main([str(path)])
    error = capsys.readouterr().err
    assert status in (0, 2)
    assert error.count("\n") == (status == 2)
    assert len(error) <= 301
