"""A network of namespaces: what it needs, and that nothing is left however it ends."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from marked import bearing, marked, running, wait_for, wait_until_none
from moved import needs_namespaces
from places import PYTHONPATH

from harness.instruments.network import emulated_network as module
from harness.instruments.network.emulated_network import Network
from harness.instruments.network.topology import two_nodes
from harness.records import Unavailable


@pytest.fixture(scope="module", autouse=True)
def _needs_namespaces():
    needs_namespaces()


@pytest.fixture
def mark(monkeypatch):
    return marked(monkeypatch)


WITHOUT_ROOT = """
from moved import moved
from harness.instruments.network.emulated_network import Network, privileges
from harness.instruments.network.topology import two_nodes
assert "--user" in privileges(), privileges()
with Network(two_nodes(5e6)) as network:
    assert abs(network.verify(1, 5e6) / 5e6 - 1) < 0.05
    before = network.sent()[0][0]
    assert moved(network, "node0", "node1", 100_000)[0] == 100_000
    assert network.sent()[0][0] - before > 100_000
"""


def without_root(code):
    """Return a command that runs the code without privileges: root does so in a user namespace."""
    other = ["unshare", "--user", "--map-user=1000", "--map-group=1000", "--"] if os.geteuid() == 0 else []
    return [*other, sys.executable, "-c", code]


def environment():
    return {**os.environ, "PYTHONPATH": PYTHONPATH}


def test_it_works_without_root_where_the_kernel_allows(mark):
    tried = ["unshare", "--user", "--map-root-user", "--net", "--mount", "true"]
    done = subprocess.run(tried, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no user namespaces: {done.stderr.strip()}")
    done = subprocess.run(without_root(WITHOUT_ROOT), env=environment(), capture_output=True, timeout=200)
    assert (done.returncode, done.stderr) == (0, b"")
    wait_until_none(mark)


def test_without_any_privileges_it_is_unavailable_and_says_what_is_missing(mark):
    """The kernel's own refusal, in a user namespace that may have no more network namespaces."""
    code = (
        "from harness.instruments.network.emulated_network import Network, Unavailable\n"
        "from harness.instruments.network.topology import two_nodes\n"
        "try: Network(two_nodes(1e6))\n"
        "except Unavailable as error: print(error)"
    )
    inside = 'echo 0 > /proc/sys/user/max_net_namespaces && exec "$@"'
    command = ["unshare", "--user", "--map-root-user", "sh", "-c", inside, "sh", sys.executable, "-c", code]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60)
    if "unshare failed" in done.stderr:
        pytest.skip(f"no user namespaces: {done.stderr.strip()}")
    said = "networks of namespaces need root, or a kernel that allows user namespaces: unshare: "
    assert done.stdout.startswith(said), done.stderr
    assert len(done.stdout.splitlines()) == 1
    wait_until_none(mark)


def test_a_program_that_is_missing_is_named(tmp_path, monkeypatch, mark):
    for program in ("unshare", "mount"):
        (tmp_path / program).symlink_to(shutil.which(program))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable, match=r"^networks of namespaces need the program nsenter \(Debian: "):
        Network(two_nodes(1e6))
    wait_until_none(mark)


def test_a_kernel_without_tbf_is_reported_in_one_line_and_leaves_nothing(monkeypatch, mark):
    monkeypatch.setattr(module, "SERVER", "no_tbf")
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
    with Network(two_nodes(None)):
        pass
    with pytest.raises(
        Unavailable, match=r"^the network cannot be made: this kernel has no tbf queueing .*\)"
    ):
        Network(two_nodes(1e6))
    wait_until_none(mark)


def test_an_exception_within_leaves_nothing(mark):
    def fail():
        with Network(two_nodes(1e6)) as network:
            assert bearing(mark)
            assert len(network.sent()) == 2
            assert not named(os.getpid())
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    wait_until_none(mark)
    assert not named(os.getpid())


def named(pid):
    """Return the named namespaces and mounts with that process's prefix that other processes see."""
    mounts = [
        line for line in Path("/proc/self/mountinfo").read_text().splitlines() if f"harness{pid}-" in line
    ]
    return [*Path("/run/netns").glob(f"harness{pid}-*"), *mounts]


@pytest.mark.parametrize("word", ["--kill-child", "harness.instruments.network.netns_server"])
def test_a_network_whose_process_was_killed_names_that_and_leaves_nothing(mark, word):
    with Network(two_nodes(1e6)) as network:
        running(mark, word)[0].kill()
        with pytest.raises(Unavailable, match=r"^the network's server process ended"):
            wait_for(lambda: network.sent() and False)
        wait_until_none(mark)
    with pytest.raises(Unavailable, match=r"^the network is closed$"):
        network.sent()


OWNER = """
import signal
from harness.instruments.network.emulated_network import Network
from harness.instruments.network.topology import two_nodes
signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored where make runs in the background
with Network(two_nodes(5e6)) as network:
    print("made", flush=True)
    while True:
        network.verify(0, None)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_the_end_of_the_owner_is_the_end_of_the_network(mark, number):
    with subprocess.Popen(
        [sys.executable, "-c", OWNER], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment()
    ) as owner:
        assert owner.stdout.readline() == b"made\n"
        wait_for(lambda: running(mark, "receive"))
        assert not named(owner.pid)
        owner.send_signal(number)
        assert owner.wait(60) != 0
    wait_until_none(mark)
    assert not named(owner.pid)
