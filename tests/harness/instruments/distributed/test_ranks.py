"""Ranks: what they answer, and that whatever goes wrong is one truthful exception and leaves nothing."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from marked import marked, running, wait_for, wait_until_none
from places import PYTHONPATH, ROOT

from harness.instruments.distributed import rank_pool
from harness.instruments.distributed.rank_pool import RankFailed, RankLocation, RankPool, RankTimeout
from harness.instruments.distributed.rank_worker import SILENT, STORE
from harness.records import LOST, Status, Unavailable
from harness.sweep import failure_classification

ENVIRONMENT = {"PYTHONPATH": PYTHONPATH, "OMP_NUM_THREADS": "1"}
PLACE = RankLocation(environment=ENVIRONMENT)
LIMIT_S = 100.0

STAND_IN = {
    "__init__.py": """
zeros = int
float32 = float64 = float
def ones(size, dtype):
    return dtype(size)
def __getattr__(name):
    if name.startswith("_") or name == "distributed":
        raise AttributeError(name)
    return abs
""",
    "distributed.py": """
import time
get_rank = get_world_size = int
def init_process_group(*given, **more):
    pass
TCPStore = init_process_group
def all_reduce(tensor):
    while True:
        time.sleep(0.01)
""",
}
"""In torch's place, which takes two seconds to import: a collective in which every rank waits."""


def pool_of(count, place=PLACE):
    return RankPool([place] * count, "127.0.0.1", timeout_s=LIMIT_S)


@pytest.fixture(scope="module")
def light(tmp_path_factory, ranks_by_command):
    folder = tmp_path_factory.mktemp("stand_in")
    (folder / "torch").mkdir()
    for name, text in STAND_IN.items():
        (folder / "torch" / name).write_text(text)
    return RankLocation(environment=ENVIRONMENT | {"PYTHONPATH": f"{folder}{os.pathsep}{PYTHONPATH}"})


@pytest.fixture(scope="module")
def two():
    with pool_of(2) as pool:
        yield pool


@pytest.fixture
def mark(monkeypatch):
    mark = marked(monkeypatch)
    yield mark
    wait_until_none(mark)


def test_answers_come_in_order_of_rank_whatever_a_rank_prints_or_keeps(two):
    assert two.call("on_ranks:number_with_rank_0_last") == [0, 1]
    assert len(two) == len(set(two.pids)) == 2
    assert two.call("on_ranks:reduced", elements=1000) == [[3.0 * i for i in range(1000)]] * 2
    two.call("on_ranks:keep", value="a value")
    assert two.call("on_ranks:kept") == [["a value", rank] for rank in range(2)]
    assert two.call("on_ranks:shout", lines=50_000) == ["said"] * 2
    assert two.call("on_ranks:number") == [0, 1]


def test_arguments_and_answers_may_be_larger_than_a_pipe_holds_and_are_json(two):
    assert two.call("on_ranks:length", text="ü\n" * 2_000_000) == [4_000_000] * 2
    assert two.call("on_ranks:text_of", count=5_000_000) == ["x" * 5_000_000] * 2
    with pytest.raises(TypeError, match="not JSON serializable"):
        two.call("on_ranks:length", text=object())
    assert two.call("on_ranks:number") == [0, 1]


def test_ranks_that_meet_on_this_machine_listen_on_the_loopback_alone(two):
    listening = [
        one.laddr.ip.replace("::ffff:", "")
        for pid in two.pids
        for one in psutil.Process(pid).net_connections("inet")
        if one.status == psutil.CONN_LISTEN
    ]
    assert set(listening) == {"127.0.0.1"}


def failing(ways, kind, within_s=None, place=PLACE):
    """Return the exception of a pool whose ranks do `ways`, which closes it."""
    with pool_of(len(ways), place) as pool:
        pids = pool.pids
        with pytest.raises(kind) as caught:
            pool.call("on_ranks:misbehave", within_s, ways=ways)
        assert len(pool) == 0
        assert type(caught.value) is kind
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
        first = str(caught.value).splitlines()[0]
        with pytest.raises(RankFailed) as again:
            pool.call("on_ranks:number")
        assert str(again.value) == f"number: the pool is closed, since {first}"
    return caught.value


def test_a_rank_that_is_killed_in_a_collective_is_named_and_not_those_that_lost_it(mark):
    error = failing(["SIGKILL", ""], RankFailed)
    assert str(error).startswith("rank 0 was killed by SIGKILL in misbehave")


def test_a_rank_that_is_lost_with_its_node_is_no_failure_of_the_cell(mark):
    """What represents it here ends once it has heard nothing for long; others lose the connection first."""
    silent = ["sh", "-c", f'"$@"; sleep 0.3; exit {SILENT}', "sh"]
    elsewhere = RankLocation(silent, {**ENVIRONMENT, STORE: "host:port"})
    with (
        RankPool([PLACE, elsewhere], "127.0.0.1", timeout_s=LIMIT_S) as pool,
        pytest.raises(Unavailable, match=f"^{LOST}lost rank 1 in misbehave: its node sends no heartbeat$"),
    ):
        pool.call("on_ranks:misbehave", ways=["", "SIGKILL"])


@pytest.mark.parametrize(
    ("how", "kind", "said"),
    [
        ("ValueError", RankFailed, "ValueError: three heads (on_ranks.py:"),
        ("no JSON", RankFailed, "TypeError: Object of type object is not JSON serializable (encoder.py:"),
        ("Unavailable", Unavailable, "no such library"),
        ("MemoryError", MemoryError, "too large"),
    ],
)
def test_what_a_rank_raises_is_reported_with_rank_and_function(mark, light, how, kind, said):
    error = failing(["", how], kind, place=light)
    assert str(error).startswith(f"rank 1, misbehave: {said}")
    assert len(str(error).splitlines()) == 1


@pytest.mark.parametrize(
    ("how", "ended", "printed"),
    [
        ("exit", "rank 1 ended with exit code 7 in misbehave", "these are the last words"),
        ("SIGSEGV", "rank 1 was killed by SIGSEGV in misbehave", "on_ranks.py"),
    ],
)
def test_a_rank_that_ends_is_reported_with_its_last_words_or_stack(mark, light, how, ended, printed):
    error = failing(["", how], RankFailed, place=light)
    first, *others = str(error).splitlines()
    assert first.startswith(ended)
    assert any(printed in line for line in others)
    assert failure_classification.of_exception(error, "suites")[0] == Status.CRASHED


def test_of_ranks_that_hang_the_places_are_reported_and_survive_as_a_reason(mark, light):
    error = failing(["", "hang", "hang in C"], RankTimeout, within_s=3.0, place=light)
    lines = str(error).splitlines()
    assert lines[0] == "rank 0 and rank 1 and rank 2 gave no answer to misbehave within 3 s"
    blocks = str(error).split("\nrank ")[1:]
    assert [block[0] for block in blocks] == ["0", "1", "2"]
    assert "in all_reduce_on_and_on" in blocks[0]
    assert blocks[1].splitlines()[1].endswith("in _hang")
    assert blocks[2].splitlines()[1].endswith("in _hang_in_c")
    status, reason = failure_classification.of_exception(error, "suites")
    assert status == Status.TIMED_OUT
    assert reason.startswith(f"RankTimeout: {lines[0]}")
    assert "in _hang\n" in reason
    assert "in _hang_in_c" in reason
    assert str(ROOT) not in reason
    assert sys.prefix not in reason


def test_a_rank_that_is_stopped_and_does_not_even_listen_is_reported_too(mark, light, monkeypatch):
    monkeypatch.setattr(rank_pool, "STACK_S", 0.2)  # which it does not print
    with pool_of(2, light) as pool:
        os.kill(pool.pids[1], signal.SIGSTOP)
        with pytest.raises(RankTimeout, match=r"^rank 1 gave no answer to length within 2 s"):
            pool.call("on_ranks:length", 2.0, text="x" * 5_000_000)


def test_ranks_that_cannot_meet_are_named_and_leave_nothing(mark, light):
    lost = RankLocation(environment={**light.environment, "MASTER_ADDR": "127.77.0.1"})
    with pytest.raises(RankFailed, match=r"^rank 1, join: ConnectionError: rank 0 cannot be reached at 127"):
        RankPool([light, lost], "127.0.0.1", timeout_s=30.0)


OWNER = """
import signal
import sys
from harness.instruments.distributed.rank_pool import RankLocation, RankPool
signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored where make runs in the background
with RankPool([RankLocation()] * 2, "127.0.0.1") as pool:
    print("made", flush=True)
    pool.call("on_ranks:misbehave", 600.0, ways=["", sys.argv[1]])
"""


@pytest.mark.parametrize(("number", "how"), [(signal.SIGKILL, "hang in C"), (signal.SIGINT, "hang")])
def test_the_end_of_the_owner_is_the_end_of_the_ranks(mark, light, number, how, tmp_path):
    environment = {**os.environ, **light.environment, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, how], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
    ) as owner:
        assert owner.stdout.readline() == b"made\n"
        assert len(running(mark, "harness.instruments.distributed.rank_worker")) == 2
        wait_for(lambda: any(how in file.read_text() for file in tmp_path.rglob("rank1")))
        owner.send_signal(number)
        assert owner.wait(60) != 0
    wait_until_none(mark)
    assert number == signal.SIGKILL or not list(tmp_path.iterdir())
