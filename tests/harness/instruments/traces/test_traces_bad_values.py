"""Whatever a file contains, it is read, or refused in one line of at most 300 characters."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kineto_traces import Writer

from harness.commands.profile import main
from harness.config.code_fingerprint import ROOT

TOO_LARGE = ROOT / "tests/data/traces/times_too_large.json"


def document():
    one = Writer()
    one.step(0, 0, 1_000_000)
    one.host_event("aten::mm", 5_000, 100_000)
    one.kernel("gemm", 100_000, 400_000, called=10_000, grid=[1, 1, 1])
    one.kernel("ncclDevKernel", 300_000, 500_000, called=20_000, **{"Collective name": "allreduce", "Seq": 3})
    return json.loads(one.text())


def refused(path, capsys):
    """Return the one line with which a trace is refused."""
    assert main([str(path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("harness.profile: ")
    assert error.count("\n") == 1
    assert len(error) <= 301
    return error


def test_times_that_are_too_large(capsys):
    assert "out of range" in refused(TOO_LARGE, capsys)


BAD_TIMES = {
    "huge": ("1e308", "out of range"),
    "more than int64": ("1e17", "out of range"),
    "a thousand digits": ("9" * 1000, "out of range"),
    "a string": ('"12"', "not a number"),
    "NaN as a string": ('"NaN"', "not a number"),
    "a list": ("[1]", "not a number"),
    "true": ("true", "not a number"),
    "NaN": ("NaN", "not valid JSON"),
    "Infinity": ("Infinity", "not valid JSON"),
    "negative infinity": ("-1e999999", "out of range"),
    "negative": ("-5", "ends before it starts"),
}


@pytest.mark.parametrize("name", BAD_TIMES)
def test_a_time_that_is_none(tmp_path, capsys, name):
    text, expected = BAD_TIMES[name]
    path = tmp_path / "rank0.json"
    content = document()
    content["traceEvents"][-1]["dur"] = "HERE"
    path.write_text(json.dumps(content).replace('"HERE"', text))
    assert expected in refused(path, capsys)


@pytest.mark.parametrize(
    "text",
    [
        '{"traceEvents": [{"ph": "X"',
        '{"traceEvents": [1, 2]}',
        '{"traceEvents": {"ph": "X"}}',
        '{"traceEvents": [{"ph": "X", "args": []}]}',
        '{"traceEvents": [{"ph": "X", "name": {}}]}',
        '{"traceEvents": ' + "[" * 100_000,
        '{"traceEvents": []}',
        '{"traceEvents": null}',
        '{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "' + "k" * 3000 + '", "ts": "x"}]}',
        '"a text"',
        "null",
        "{}",
    ],
)
def test_other_documents(tmp_path, capsys, text):
    path = tmp_path / "rank0.json"
    path.write_text(text)
    refused(path, capsys)


def test_a_long_name_of_a_file_leaves_one_line(tmp_path, capsys):
    path = tmp_path / ("n" * 240 + ".json")
    path.write_text("{}")
    refused(path, capsys)


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=4,
)
PLACES = st.sampled_from(
    [
        *(("traceEvents", -1, key) for key in ("ph", "name", "cat", "pid", "tid", "ts", "dur", "args")),
        *(("traceEvents", -1, "args", key) for key in ("correlation", "External id", "stream", "device")),
        *(("traceEvents", -1, "args", key) for key in ("Collective name", "Seq", "In msg nelems", "grid")),
        ("traceEvents",),
        ("distributedInfo",),
        ("distributedInfo", "rank"),
        ("distributedInfo", "world_size"),
        ("distributedInfo", "pg_config"),
        ("deviceProperties",),
        ("baseTimeNanoseconds",),
        ("host_name",),
    ]
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(place=PLACES, value=ANY)
def test_any_value_at_any_place(tmp_path, capsys, place, value):
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


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(at=st.integers(0, 2000), letters=st.binary(max_size=4), end=st.booleans())
def test_any_damage_to_the_bytes(tmp_path, capsys, at, letters, end):
    content = json.dumps(document()).encode()
    path = tmp_path / "rank0.json"
    path.write_bytes(content[:at] + letters + (b"" if end else content[at + len(letters) :]))
    assert main([str(path)]) in (0, 2)
    error = capsys.readouterr().err
    assert error.count("\n") <= 1
    assert len(error) <= 301
