"""Files whose tests are left out of `make check`."""

from pathlib import Path

from gate import STARTS

TESTS = Path(__file__).parents[1]


def test_each_file_that_is_marked_exists_and_is_named_once():
    files = [file for files in STARTS.values() for file in files.split()]
    assert len(files) == len(set(files))
    assert [file for file in files if not any(TESTS.rglob(f"{file}.py"))] == []


def test_files_that_start_ranks_networks_or_compilers_are_marked():
    """Found by what they import; a file of another name that starts one has to be listed."""
    starts = ("distributed.rank_pool", "emulated_network", "network.netns_server", "suites.offload.cgroup")
    files = {file for files in STARTS.values() for file in files.split()}
    found = {path.stem for path in TESTS.rglob("test_*.py") if any(one in path.read_text() for one in starts)}
    assert found - files - {Path(__file__).stem} == set()
