"""Files whose tests are left out of `make check`."""

from pathlib import Path

from gate import STARTS

TESTS = Path(__file__).parents[1]


def test_each_file_that_is_marked_exists_and_is_named_once():
    files = [file for files in STARTS.values() for file in files.split()]
    assert len(files) == len(set(files))
    assert [file for file in files if not any(TESTS.rglob(f"{file}.py"))] == []
