"""Cells that go wrong in every way a process can, truly run: one truthful record each, and nothing left."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from places import ROOT, SUPPORT
from toy.jobs_sweep import wait_for
from toy.sweep import cell, environ, group, marked, start, sweep

from harness.records import Limits, Measurement
from harness.sweep.executors import child
from harness.sweep.store import Store, StoreError, read_records

pytestmark = pytest.mark.usefixtures("toy_suites")

SWEEP = SUPPORT / "toy" / "sweep.py"
BUDGET_B = 200_000_000
HERE = r"\(toy_suites/faults/baseline\.py:\d+\)"

FAULTS = {
    "nothing": ("ok", "", 3),
    "raise_error": ("crashed", rf"ValueError: the text\nof the error \? {HERE}", 1),
    "call_library": (
        "crashed",
        r"JSONDecodeError: .* \(json/decoder\.py:\d+, from toy_suites/faults/baseline\.py:\d+\)",
        1,
    ),
    "chain": ("out_of_memory", rf"RuntimeError: while building {HERE}; its limit is {BUDGET_B} B", 1),
    "unavailable_here": ("unavailable", "needs two GPUs; this host has none", 1),
    "need_library": ("unavailable", "the library 'no_such_library_anywhere' is not installed", 1),
    "need_part": ("crashed", rf"ModuleNotFoundError: No module named 'json\.no_such_part' {HERE}", 1),
    "leave": ("crashed", rf"SystemExit: 0 {HERE}", 1),
    "print_much": ("ok", "", 3),  # neither it nor the next leaves last words to the one after
    "close_output": ("ok", "", 3),
    "leave_at_once": ("crashed", "exit code 0 before the cell ended; last printed:\ngoing", 1),
    "abort": ("crashed", r"killed by SIGABRT; last printed:\nabout to abort\nFatal Python error: .*", 1),
    "segfault": ("crashed", r"killed by SIGSEGV; last printed:\n(.*\n)*.* in segfault\n(.*\n)*.*", 1),
    "kill_itself": ("crashed", "killed by SIGKILL; last printed:\nlast words", 1),
    "flood": ("ok", "", 3),
    "flood_and_abort": ("crashed", r"killed by SIGABRT; .*\nthe end of the flood\nFatal.*", 1),
    "close_everything": ("crashed", r"exit code 1 before the cell ended; .*Bad file descriptor", 1),
    "leave_child": ("ok", "", 3),
    "leave_daemon": ("ok", "", 3),
    "leave_files": ("ok", "", 4),
    "not_a_number": ("crashed", r"ValueError: metric 'loss': value nan is not finite.*", 2),
    "unknown_unit": ("crashed", r"ValueError: metric 'size': unit 'GB'; allowed: 1, B, .*", 2),
    "unknown_origin": ("crashed", r"ValueError: metric 'size': origin 'guessed'; allowed: measured, .*", 2),
    "text_value": ("crashed", r"TypeError: metric 'size': value '1\.0' is a str, not a number.*", 2),
    "no_reading": ("crashed", r"TypeError: sample\(\) yielded tuple .*, neither Reading nor Note.*", 2),
    "look_around": ("ok", "", 6),
    "fork": ("ok", "", 3),
    "write_nonsense_among_events": ("ok", "", 3),
    "be_wrong": ("wrong_result", "loss 2.5 against 2.0, more than 1e-5 apart", 0),
    "take_memory": ("out_of_memory", rf"MemoryError {HERE}; its limit is {BUDGET_B} B", 1),
    "throw_bad_alloc": ("out_of_memory", r"killed by SIGABRT; last printed:\n(.*\n)*.*bad_alloc(.*\n)*.*", 1),
}
AMOUNTS = {"close_output": 0.1, "take_memory": 3e8, "throw_bad_alloc": 1e9}
TOLD = {act: cell(act, **({"amount": AMOUNTS[act]} if act in AMOUNTS else {})) for act in FAULTS}
OTHERS = {
    "absent": (cell(module="absent"), "unavailable", r"needs a GPU; this host has cpu with \d+ cores"),
    "broken_close": (cell(module="broken_close"), "crashed", r"OSError: cannot be closed \(.*\)"),
    "broken_twice": (
        cell(module="broken_close", first=True),
        "crashed",
        r"ValueError: the first failure \(.*\); close\(\) failed too: cannot be closed",
    ),
    "no_module": (
        cell(module="nowhere"),
        "crashed",
        r"ModuleNotFoundError: .*'toy_suites\.faults\.nowhere' .*",
    ),
    "no_suite": (cell(suite="nowhere"), "crashed", r"ModuleNotFoundError: .*'toy_suites\.nowhere' .*"),
    "no_setting": (cell(bogus=3), "crashed", r"TypeError: .* unexpected keyword argument 'bogus' .*"),
}


def assert_nothing_is_left(folder):
    assert marked(folder) == []
    assert not (Path(folder) / ".tmp").exists()


def samples(record):
    return sum(len(one.samples) for one in record.measurements)


@pytest.fixture(scope="module")
def faults(tmp_path_factory):
    """Return one group of all the cells that fail by themselves, in which every death needs a new child."""
    folder = tmp_path_factory.mktemp("faults")
    cells = [*TOLD.values(), *(other[0] for other in OTHERS.values())]
    return folder, cells, sweep(folder, [group(*cells)], Limits(20.0, BUDGET_B))


@pytest.mark.parametrize("name", [*FAULTS, *OTHERS])
def test_a_cell_ends_in_one_truthful_record(faults, name):
    one, status, reason = OTHERS[name] if name in OTHERS else (TOLD[name], *FAULTS[name][:2])
    record = faults[2][one.id]
    assert record.status == status, record.reason
    assert re.fullmatch(reason, record.reason, re.S if "last printed" in record.reason else 0), record.reason
    if name in FAULTS:
        assert samples(record) == FAULTS[name][2]  # those taken before the end are kept


def test_the_sweep_goes_on_past_all_of_them(faults):
    """What a child prints is bounded, and reasons name no folder of this machine."""
    folder, cells, records = faults
    text = (folder / "records.jsonl").read_text()
    assert [json.loads(line)["cell"]["id"] for line in text.splitlines()] == [one.id for one in cells]
    assert [record.cell for record in read_records(folder)] == cells == [one.cell for one in records.values()]
    assert len(records[TOLD["flood_and_abort"].id].reason) < 20 * 302
    assert len(text) < 100_000
    assert str(ROOT) not in text
    assert sys.base_prefix not in text
    assert_nothing_is_left(folder)


def test_a_record_contains_what_the_cell_reported(faults):
    record = faults[2][TOLD["leave_files"].id]
    assert record.measurements == (
        Measurement("seed", "1", "measured", "", (7.0,)),
        Measurement("time", "s", "measured", "clock", (0.25, 0.5)),
        Measurement("inside", "1", "measured", "", (1.0,)),
    )
    assert record.notes == ("a remark",)
    assert record.conditions == {"device": "toy", "name": "leave_files"}
    assert (faults[0] / f"environment-{record.environment}.json").exists()
    assert record.limits == Limits(20.0, BUDGET_B)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", record.started_at)
    assert 0 <= record.duration_s < 20
    seen = {one.metric: one.samples for one in faults[2][TOLD["look_around"].id].measurements}
    assert [seen[one] for one in ("torch", "core", "stdin")] == [(0.0,)] * 3  # no core dumps, no input


def test_a_cell_past_its_limit_is_ended_with_all_it_started(tmp_path):
    acts = ("hang", "hang_in_c", "leave_daemon_and_hang", "hang_at_exit")
    cells = [cell(act) for act in acts]
    cpu_s = time.process_time()
    closing = cell("close_output", amount=1.5)  # whose end of output the parent could spin on
    groups = [group(cells[0], cells[3]), group(closing, cells[1]), group(cells[2])]  # which wait at once
    records = sweep(tmp_path, groups, Limits(4.0), workers=3)  # a busy machine ends no cell within less
    assert [records[one.id].status for one in cells] == ["timed_out"] * 3 + ["ok"]
    for one in cells[:3]:
        assert records[one.id].reason.startswith("over its limit of 4 s; last printed:\n")
        assert f"in {one.workload.replace('leave_daemon_and_hang', 'hang_in_c')}" in records[one.id].reason
        assert samples(records[one.id]) == 1
        assert 2 < records[one.id].duration_s < 12
    assert time.process_time() - cpu_s < 1.0  # it waits, and does not spin
    assert_nothing_is_left(tmp_path)


def test_a_process_that_the_kernel_cannot_end_is_given_up(tmp_path, monkeypatch, caplog):
    """As one that waits for a driver: here, one that is not killed."""
    cells = [cell("hang"), cell("nothing")]
    monkeypatch.setattr(child, "EXIT_GRACE_S", 0.2)
    monkeypatch.setattr(child.Child, "_kill", lambda self: None)
    monkeypatch.setattr(child.Child, "_request_stack_dump", lambda self: None)
    monkeypatch.setattr(child, "kill_by_tmpdir", lambda folder: None)
    records = sweep(tmp_path, [group(*cells)], Limits(3.0))  # within less a busy machine starts no cell
    assert [records[one.id].status for one in cells] == ["timed_out", "ok"]
    assert "did not end when killed; continuing without it" in caplog.text


def test_who_is_killed_by_its_folder_keeps_its_exit_status(tmp_path):
    with subprocess.Popen(["sleep", "60"], env={**os.environ, "TMPDIR": str(tmp_path / "own")}) as process:
        child.kill_by_tmpdir(tmp_path)
        assert process.wait(timeout=30) == -signal.SIGKILL


def test_where_no_child_can_be_started_the_sweep_ends_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no_python"))
    with pytest.raises(StoreError, match=r"^cannot start a child process with .*No such file or directory$"):
        sweep(tmp_path, [group(cell("nothing"))])
    assert_nothing_is_left(tmp_path)


def test_torch_meets_the_budget_too(tmp_path):
    within = cell(module="torch_memory", size_B=300_000_000)
    beyond = cell(module="torch_memory", size_B=500_000_000)
    records = sweep(tmp_path, [group(within, beyond)], Limits(60.0, 400_000_000))
    assert records[within.id].status == "ok", records[within.id].reason
    assert records[beyond.id].status == "out_of_memory"
    assert "you tried to allocate 500000000 bytes" in records[beyond.id].reason
    assert "its limit is 400000000 B" in records[beyond.id].reason


CGROUP = Path("/sys/fs/cgroup/memory")


@pytest.mark.skipif(not os.access(CGROUP / "memory.limit_in_bytes", os.W_OK), reason="needs a memory cgroup")
def test_a_cell_that_the_kernel_kills_for_memory_is_distinguished_from_one_that_is_killed(tmp_path):
    cells = [cell("take_memory", amount=4e8), cell("kill_itself"), cell("nothing")]
    cgroup = CGROUP / f"harness_test_{os.getpid()}"
    cgroup.mkdir()
    try:
        (cgroup / "memory.limit_in_bytes").write_text("150000000")
        command = [sys.executable, str(SWEEP), str(tmp_path), json.dumps({"groups": [cells]})]
        confined = f"echo $$ > {cgroup}/cgroup.procs; exec {shlex.join(command)}"
        subprocess.run(["sh", "-c", confined], env=environ(), check=True, timeout=60)
    finally:
        cgroup.rmdir()
    memory, killed, well = read_records(tmp_path)
    assert (memory.status, killed.status, well.status) == ("out_of_memory", "crashed", "ok")
    assert "out-of-memory killer ended 1 process" in memory.reason


def test_one_child_runs_a_group_in_order(tmp_path):
    log = tmp_path / "log"
    cells = [cell(workload={"log": str(log), "name": f"w{i}"}) for i in range(3)]
    sweep(tmp_path / "out", [group(*cells[:2]), group(cells[2])])
    acts = [f"{act} w{i}" for i in range(3) for act in ("build", "close")]
    assert log.read_text().split("\n") == [*acts, ""]


def test_children_run_at_once_where_there_are_workers(tmp_path):
    folder = tmp_path / "meeting"
    folder.mkdir()
    cells = [cell("meet", workload={"folder": str(folder)}, repeat=i) for i in range(2)]
    records = sweep(tmp_path / "out", [group(one) for one in cells], workers=2)
    assert [records[one.id].status for one in cells] == ["ok", "ok"], records


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_sweep_keeps_its_records_and_leaves_nothing(tmp_path, number, code):
    cells = [cell("nothing"), cell("leave_daemon_and_hang")]
    parent = start(tmp_path, [cells])
    wait_for(lambda: len(marked(tmp_path)) == 3)  # the worker, and both that it left
    parent.send_signal(number)
    _, said = parent.communicate(timeout=10)
    assert parent.returncode == code
    assert said == f"ended by {number.name}; the same command resumes from here\n"
    assert [record.cell.id for record in read_records(tmp_path)] == [cells[0].id]
    assert_nothing_is_left(tmp_path)


def test_a_full_disk_ends_the_sweep_with_one_error_and_no_child(tmp_path, monkeypatch):
    def full(store, record):
        raise StoreError("the disk is full")

    monkeypatch.setattr(Store, "append", full)
    with pytest.raises(StoreError, match="the disk is full"):
        sweep(tmp_path, [group(cell("nothing"), cell("hang"))])
    assert_nothing_is_left(tmp_path)
