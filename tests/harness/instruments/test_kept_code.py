"""Compiled code that later processes of a sweep find again."""

import os
import subprocess
import sys
from pathlib import Path

from harness.instruments.process import COMPILED_FOLDER, kept_code
from harness.sweep.executors.child import child_environ

PROGRAM = """
import os, sys
from harness.instruments.process import kept_code
made = []
found = kept_code(lambda: made.append(1) or b"code of " + sys.argv[1].encode(), "engine", sys.argv[1])
print(found.method, found.code.decode(), len(made))
"""


def in_a_child(environ, name):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, name], env=environ, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def test_a_later_child_of_the_sweep_finds_what_an_earlier_one_made(tmp_path, monkeypatch):
    monkeypatch.delenv(COMPILED_FOLDER, raising=False)
    first, second = (child_environ(tmp_path / "sweep" / name, 1) for name in ("a", "b"))
    assert in_a_child(first, "graph") == "cold code of graph 1"
    assert in_a_child(second, "graph") == "cached code of graph 0"
    assert in_a_child(second, "another graph") == "cold code of another graph 1"
    other = child_environ(tmp_path / "another sweep" / "a", 1)
    assert in_a_child(other, "graph") == "cold code of graph 1"
    assert {path.parts[-3] for path in Path(tmp_path, "sweep").rglob("*") if path.is_file()} == {"compiled"}


def test_without_a_folder_nothing_is_kept(monkeypatch):
    monkeypatch.delenv(COMPILED_FOLDER, raising=False)
    assert [kept_code(lambda: b"x", "a") for _ in range(2)] == [(b"x", ""), (b"x", "")]


def test_parts_of_a_key_are_apart_and_nothing_half_written_stays(monkeypatch, tmp_path):
    monkeypatch.setenv(COMPILED_FOLDER, str(tmp_path))
    assert kept_code(lambda: b"1", "a", "b").method == "cold"
    assert kept_code(lambda: b"2", "ab").code == b"2"
    assert kept_code(lambda: b"3", "a", "b") == (b"1", "cached")
    assert len(os.listdir(tmp_path / "kept")) == 2
