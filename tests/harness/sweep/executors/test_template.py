"""Children forked from a template: like those that are started by themselves, and as surely ended."""

import os
import signal
import subprocess
import sys
from contextlib import closing

import pytest
from places import SUPPORT
from toy.jobs_sweep import is_running, wait_for
from toy.sweep import PACKAGE, cell, group, marked, start, sweep

from harness.records import STATUS_UNKNOWN, Group, Limits, Sampling, measurement
from harness.sweep.executors import CellFinished, CellStarted, local, template

pytestmark = pytest.mark.usefixtures("toy_suites")

SWEEP = SUPPORT / "toy" / "sweep.py"
BUDGET_B = 200_000_000
ACTS = ["nothing", "raise_error", "unavailable_here", "be_wrong", "leave", "leave_at_once", "abort"]
ACTS += ["segfault", "kill_itself", "flood_and_abort", "close_everything", "take_memory", "throw_bad_alloc"]
ACTS += ["fork", "leave_child", "leave_daemon", "leave_files", "look_around", "write_nonsense_among_events"]
AMOUNTS = {"leave_at_once": 3.0, "take_memory": 3e8, "throw_bad_alloc": 1e9}


@pytest.fixture
def log(tmp_path, monkeypatch):
    """Return the counted suite's log."""
    file = tmp_path / "log"
    monkeypatch.setenv("TOY_LOG", str(file))
    return file


def counted(act="look", repeat=0):
    return cell(act, suite="counted", repeat=repeat)


def value(record, metric):
    return measurement(record, metric).samples[0]


def events(folder, together):
    """Return what children report of ACTS, without times and what was printed; `together`: in one group."""
    found = []
    cells = [cell(act, amount=AMOUNTS.get(act, 0.0)) for act in ACTS]
    groups = [group(*cells)] if together else [group(one) for one in cells]
    for event in local.create(folder).run(groups, Limits(20.0, BUDGET_B), several=True):
        if isinstance(event, CellStarted):
            event = event._replace(at="")
        if isinstance(event, CellFinished):
            event = event._replace(duration_s=0.0, reason=event.reason.partition("; last printed")[0])
        found.append(event)
    assert marked(folder) == []
    return found


def test_forked_children_report_what_others_do(tmp_path, monkeypatch):
    forked = events(tmp_path / "forked", together=False)
    monkeypatch.setattr(local, "GPUS", ("/dev/null",))
    assert forked == events(tmp_path / "by_themselves", together=True)


def test_a_forked_child_is_like_one_started_by_itself(tmp_path, log):
    cells = [counted(repeat=repeat) for repeat in range(4)]
    sweep(tmp_path / "out", [group(cells[0])])
    records = sweep(tmp_path / "out", [group(one) for one in cells])
    assert {record.status for record in records.values()} == {"ok"}
    seen = [{one.metric: one.samples[0] for one in records[cell.id].measurements} for cell in cells]
    for reported in seen:
        del reported["seed"]
    assert [reported.pop("forked") for reported in seen] == [0.0, 1.0, 1.0, 1.0]
    assert len({reported.pop("random") for reported in seen}) == 4
    assert seen[0]["folder shown"] == seen[0]["folder used"] == seen[0]["leads its session"] == 1.0
    assert seen[1:] == seen[:1] * 3


def test_private_memory_is_counted_and_limited_from_what_a_fork_inherits():
    """In a process of its own, whose memory no other test changes."""
    code = """
import os, sys
from harness.instruments.memory.process_memory import private_bytes, private_limit
inherited = bytearray(300_000_000)
before_B = private_bytes()
if (pid := os.fork()) == 0:
    assert private_bytes() == before_B
    inherited[::4096] = bytes(len(inherited[::4096]))  # every page is copied
    assert private_bytes() - before_B < 1_000_000
    with private_limit(private_bytes() + 100_000_000):
        bytearray(60_000_000)
        try:
            bytearray(120_000_000)
        except MemoryError:
            os._exit(7)
    os._exit(1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 7)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_of_several_all_are_forked_from_one_import_and_their_exit_handlers_run(tmp_path, log):
    cells = [*(counted(repeat=repeat) for repeat in range(3)), counted("run_at_exit")]
    records = sweep(tmp_path / "out", [group(one) for one in cells], workers=2)
    assert [value(records[one.id], "forked") for one in cells[:3]] == [1.0, 1.0, 1.0]
    assert sorted(log.read_text().splitlines()) == ["exit handler", "import", "preload"]


def test_interleaved_groups_and_all_on_a_host_with_a_gpu_are_started_by_themselves(tmp_path, monkeypatch):
    executor = local.create(tmp_path)
    alone = group(cell())
    together = Group((cell(),), PACKAGE, Sampling(rounds=2, target_ci_half_width=0.1, budget_s=1.0))
    assert [executor.forks(one) for one in (alone, together)] == [True, False]
    monkeypatch.setattr(local, "GPUS", ("/dev/null",))
    assert not executor.forks(alone)
    assert executor._template(alone, Limits(20.0), alone=True, several=True) is None


def test_where_a_suite_cannot_be_imported_each_cell_reports_it(tmp_path, log, monkeypatch):
    monkeypatch.setenv("TOY_BROKEN", "1")
    cells = [counted(repeat=repeat) for repeat in range(3)]
    records = sweep(tmp_path / "out", [group(one) for one in cells])
    assert {record.status for record in records.values()} == {"crashed"}
    assert all(r.reason.startswith("ValueError: cannot be imported (") for r in records.values())
    assert log.read_text().split() == ["import"] * 4  # the template is tried once


def test_a_forked_child_past_its_limit_prints_its_stack_and_is_ended(tmp_path):
    cells = [cell("nothing"), cell("hang"), cell("leave_daemon_and_hang"), cell("hang_at_exit")]
    records = sweep(tmp_path, [group(one) for one in cells], Limits(3.0))
    assert [records[one.id].status for one in cells] == ["ok", "timed_out", "timed_out", "ok"]
    for one, where in zip(cells[1:3], ("hang", "hang_in_c"), strict=True):
        assert records[one.id].reason.startswith("over its limit of 3 s; last printed:\n")
        assert f"in {where}" in records[one.id].reason
    assert marked(tmp_path) == []


def test_what_a_forked_child_forks_is_killed_with_it_in_any_session(tmp_path, log):
    executor = local.create(tmp_path / "out")
    cells = [counted(), counted("leave_forked_daemon"), counted(repeat=1)]
    with closing(executor.run([group(one) for one in cells], Limits(20.0), several=True)) as events:
        next(event for event in events if event[0] == cells[2].id)
        assert not is_running(int(log.read_text().split()[-1]))
    assert marked(tmp_path) == []


def test_where_the_template_is_killed_its_child_goes_on_and_the_next_has_a_new_one(tmp_path, log):
    cells = [counted(), counted("end_parent"), counted(repeat=1), counted("end_parent_and_leave")]
    cells.append(counted(repeat=2))
    records = sweep(tmp_path / "out", [group(one) for one in cells])
    assert [records[one.id].status for one in cells] == ["ok", "ok", "ok", "crashed", "ok"]
    assert records[cells[3].id].reason == STATUS_UNKNOWN
    assert value(records[cells[2].id], "forked") == value(records[cells[4].id], "forked") == 1.0
    assert log.read_text().split().count("preload") == 3


def test_a_template_that_does_not_answer_is_given_up(tmp_path, log, monkeypatch):
    """The child is started by itself, and the next has a new template."""
    monkeypatch.setattr("harness.sweep.executors.template.ANSWER_S", 0.5)
    executor = local.create(tmp_path / "out")

    def groups():
        for repeat in range(4):
            if repeat == 2:
                os.kill(executor._templates["toy_suites.counted.suite"]._process.pid, signal.SIGSTOP)
            yield group(counted(repeat=repeat))

    events = executor.run(groups(), Limits(20.0), several=True)
    readings = [event.reading for event in events if hasattr(event, "reading")]
    forked = [reading.value for reading in readings if reading.metric == "forked"]
    assert forked == [1.0, 1.0, 0.0, 1.0]


def test_a_signal_during_a_fork_ends_the_template_and_its_child(tmp_path, monkeypatch):
    """The answer that was not read is not taken for the next one's."""
    answers = []

    def answer(template, patience_s, own=template.Template._answer):
        answers.append(template)
        if len(answers) == 2:  # the first says that it is ready
            raise KeyboardInterrupt
        return own(template, patience_s)

    monkeypatch.setattr(template.Template, "_answer", answer)
    groups = [group(cell("nothing")), group(cell("hang"))]
    with pytest.raises(KeyboardInterrupt):
        list(local.create(tmp_path / "out").run(groups, Limits(20.0), several=True))
    assert answers[1]._lifeline < 0
    wait_for(lambda: marked(tmp_path / "out") == [])


def test_nothing_outlives_a_sweep_that_is_killed(tmp_path):
    parent = start(tmp_path, [[cell("nothing")], [cell("leave_child_and_hang")]])
    wait_for(lambda: len(marked(tmp_path)) == 3)  # the template, its child, and what that started
    parent.kill()
    parent.wait(10)
    wait_for(lambda: marked(tmp_path) == [])


def test_the_next_sweep_clears_a_forked_daemon_that_a_killed_one_left(tmp_path, log):
    groups = [[counted()], [counted("leave_forked_daemon"), cell("hang")]]
    parent = start(tmp_path / "out", groups, TOY_LOG=str(log))
    wait_for(lambda: log.exists() and log.read_text().strip()[-1:].isdigit())  # the daemon has its session
    wait_for(lambda: len(marked(tmp_path / "out")) == 3)  # the template, its child, the daemon
    parent.kill()
    parent.wait(10)
    wait_for(lambda: len(marked(tmp_path / "out")) == 1)
    sweep(tmp_path / "out", [group(cell("nothing"))])
    assert marked(tmp_path / "out") == []
