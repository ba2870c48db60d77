"""Traces in the user's cache folder: found again, bounded, whole, and replaced where they cannot be read."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import pytest
from small_steps import CUDA, HOST, LLAMA

from harness.config.code_fingerprint import closure, module_of
from harness.instruments.memory.caching_allocator import AllocatorSettings
from harness.instruments.memory.memory_timeline import MemoryEvent, OpSite, Timeline, from_bytes, to_bytes
from suites.training.dry_run import trace_cache
from suites.training.dry_run.trace_cache import ROOT, TraceCache, key_of, sources, user_cache
from suites.training.techniques import build_step


def a_timeline(size_B: int = 512, count: int = 1) -> Timeline:
    place = OpSite("forward 0", "aten.mm.default", (2, 3), "models/model.py:12")
    events = [MemoryEvent(number, size_B + number, place, number % 3) for number in range(count)]
    return Timeline(events, ["activations"] * count, 0, 512)


def never() -> Timeline:
    raise AssertionError("it is in the cache")


def key(step, device=CUDA) -> str | None:
    return key_of(step, device, 0, False, True, True)


@pytest.mark.parametrize("content", [b"", b"no archive", to_bytes(a_timeline())[:-30]])
def test_what_cannot_be_read_is_traced_and_replaced(tmp_path: Path, content: bytes):
    (tmp_path / "k.timeline").write_bytes(content)
    with pytest.raises(ValueError, match="no timeline"):
        from_bytes(content)
    cache = TraceCache(tmp_path)
    assert cache.timeline("k", a_timeline) == a_timeline()
    assert cache.timeline("k", never) == a_timeline()
    no_folder = TraceCache(tmp_path / "k.timeline" / "below")  # cannot be written, and that is no failure
    assert no_folder.timeline("k", a_timeline) == a_timeline()


def test_the_least_recently_used_go_first(tmp_path: Path):
    each_B = len(to_bytes(a_timeline()))
    cache = TraceCache(tmp_path, most_B=4 * each_B)
    for age, name in enumerate(("old", "used", "new", "newest")):
        cache.timeline(name, a_timeline)
        os.utime(tmp_path / f"{name}.timeline", (age, age))
    cache.timeline("used", never)  # so it is not the second oldest any more
    cache.timeline("another", a_timeline)
    assert {path.stem for path in tmp_path.iterdir()} == {"used", "newest", "another"}
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 4 * each_B


def test_what_a_killed_process_left_is_removed_later(tmp_path: Path):
    for name, age_s in (("dead", 2 * trace_cache.STALE_S), ("writing", 0.0)):
        (tmp_path / f"{name}.unfinished").write_bytes(b"part")
        then = (tmp_path / f"{name}.unfinished").stat().st_mtime - age_s
        os.utime(tmp_path / f"{name}.unfinished", (then, then))
    TraceCache(tmp_path).timeline("k", a_timeline)
    assert {path.name for path in tmp_path.iterdir()} == {"writing.unfinished", "k.timeline"}


def write_often(folder: str, size_B: int) -> int:
    """Write and read one key and others; return how many reads gave another timeline."""
    wrong = 0
    cache = TraceCache(Path(folder), most_B=20_000)
    for number in range(60):
        wrong += cache.timeline("shared", lambda: a_timeline(4096, 300)) != a_timeline(4096, 300)
        cache.timeline(f"{size_B}-{number}", lambda: a_timeline(size_B, 50))
    return wrong


def test_two_processes_at_once_see_whole_files_alone(tmp_path: Path):
    with get_context("fork").Pool(2) as pool:
        assert pool.starmap(write_often, [(str(tmp_path), 512), (str(tmp_path), 1024)]) == [0, 0]
    assert not list(tmp_path.glob("*.unfinished"))


def test_the_key_has_all_that_decides_a_trace(monkeypatch):
    step = build_step(LLAMA, ["mixed_precision"])
    keys = [
        key(step),
        key(build_step(LLAMA, [{"mixed_precision": {"gradients": "bf16"}}])),
        key(build_step(replace(LLAMA, seq_len=24), ["mixed_precision"])),
        key(replace(step, workload=replace(step.workload, micro_batch_size=3))),
        key(replace(step, ranks=2)),
        key(step, CUDA._replace(architecture="ampere")),
        key_of(step, CUDA, 1, False, True, True),
    ]
    monkeypatch.setattr(trace_cache, "code_digest", lambda: "changed")
    keys.append(key(step))
    monkeypatch.setattr(trace_cache, "library_versions", lambda: ("other",))
    keys.append(key(step))
    assert len(set(keys)) == len(keys)
    assert key(step) == key(step, CUDA._replace(allocator=AllocatorSettings(expandable_segments=True)))
    assert key(step, HOST) is None  # measured workspaces, and a user's code, may change
    assert key(replace(step, workload=replace(step.workload, model="models:make"))) is None


def test_the_folder_is_the_users_unless_it_is_named(monkeypatch, tmp_path: Path):
    monkeypatch.delenv("HARNESS_TRACES", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert user_cache().folder == tmp_path / "throughput-harness/traces"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_cache().folder == tmp_path / ".cache/throughput-harness/traces"
    monkeypatch.setenv("HARNESS_TRACES", str(tmp_path / "here"))
    assert user_cache().folder == tmp_path / "here"
    monkeypatch.setenv("HARNESS_TRACES", "off")
    assert user_cache() is None


def test_what_decides_no_trace_is_what_no_dry_run_imports():
    folders = ("techniques", "models", "triton_kernels")
    files = [file for folder in folders for file in (ROOT / "suites/training" / folder).glob("*.py")]
    modules = ("suites.training.dry_run.dry_run", *map(module_of, files))
    done = subprocess.run(
        [sys.executable, "-c", WHAT_IS_LOADED, *modules], capture_output=True, text=True, check=True, cwd=ROOT
    )
    loaded = {Path(file) for file in done.stdout.splitlines()}
    roots = ROOT / "suites/training", ROOT / "harness/instruments"
    below = {file for file in loaded | closure(modules) if any(file.is_relative_to(root) for root in roots)}
    assert {ROOT / "suites/training/trainer.py", ROOT / "suites/training/techniques/zero.py"} <= loaded
    assert below <= {*sources()}
    assert ROOT / "suites/training/layouts/account.py" not in sources()


WHAT_IS_LOADED = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
for module in list(sys.modules.values()):
    if getattr(module, "__file__", None):
        print(module.__file__)
"""
