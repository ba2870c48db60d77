"""The child that dry-runs: its failures are a line, it ends with its parent, and nothing else disturbs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from marked import wait_for
from small_config import config

from harness.ask import engines, fit, recipe
from harness.ask.engines import DryRunChild, answer_of
from harness.ask.words import FIT, question_from, words_of
from harness.commands.entry import DONE, MISTAKE
from harness.config.code_fingerprint import ROOT
from harness.config.validation import ConfigError
from harness.question import FieldOrigin, question_of

ENGINE = '''
"""An engine that does what the model's name says."""
import os, subprocess, sys, time
from harness.answer import Answer, Interval, Memory, Peak
from harness.records import Unavailable

def answers(request):
    what = request.question.model_name.partition(".")[0]
    if what == "raises":
        raise RuntimeError("a bug")
    if what == "refuses":
        raise Unavailable("no such model")
    if what == "killed":
        os.kill(os.getpid(), 9)
    if what == "prints":
        print("to Python's standard output")
        os.write(1, b"to the process's\\n")
        subprocess.run([sys.executable, "-c", "print('from a child of its own')"])
        sys.stderr.write("x" * 200_000)
    peak = Peak(micro_batch_size=1, fits=True, allocated_B=1e9, reserved_B=1e9)
    points = Interval(1e9, 1e9, 1e9)
    memory = Memory(usable_B=4e9, room_B=3e9, allocated_B=points, reserved_B=points, peaks=(peak,))
    for parameters in (1e6, 2e6):
        yield Answer(verdict="fits", likely_fits=True, parameters=parameters, memory=memory)
        if what == "killed_later":
            os.kill(os.getpid(), 9)
        if what == "hangs":
            time.sleep(600)
'''


@pytest.fixture
def made_up(tmp_path, monkeypatch):
    """Let an engine of this test answer, in a child all the same; return the folder of its models."""
    (tmp_path / "made_up_engine.py").write_text(ENGINE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setitem(engines.ENGINES, "dry run", "made_up_engine")
    monkeypatch.setattr(engines, "PROGRESS_AFTER_S", 600.0)
    return tmp_path


def model(folder, name):
    """Return the word for a model whose name tells the engine what to do."""
    return f"model={Path(config(folder)).rename(folder / f'{name}.json')}"


def question(folder, name):
    return question_from(words_of([model(folder, name)], FIT))


def children():
    return {child.pid for child in psutil.Process().children()}


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("raises", "the dry run failed (exit status 1): RuntimeError: a bug"),
        ("killed", "the dry run failed (SIGKILL)"),
        ("killed_later", "the dry run failed (SIGKILL)"),
        ("refuses", "no such model"),
    ],
)
def test_how_a_child_fails_is_one_line(made_up, name, line, capsys):
    before = children()
    assert fit.main([model(made_up, name), "what_ifs=false", f"out={made_up / 'out'}"]) == MISTAKE
    assert capsys.readouterr().err == f"harness.fit: {line}\n"
    assert children() == before
    assert not (made_up / "out").exists()


def test_a_child_answers_several_questions_and_a_lost_one_is_started_again(made_up):
    before = children()
    with DryRunChild() as child:
        for name in ("plain", "refuses", "prints"):
            last = answer_of(question(made_up, name), child=child)
            assert last.verdict == ("refused" if name == "refuses" else "fits")
        assert (last.parameters, bool(last.why)) == (2e6, True)  # what it prints is no answer
        (pid,) = children() - before
        os.kill(pid, signal.SIGKILL)
        reason = answer_of(question(made_up, "plain"), child=child).reason
        assert reason.startswith("the dry run failed (SIGKILL)")
        assert len(reason) <= 300
        assert answer_of(question(made_up, "plain"), child=child).verdict == "fits"
    assert children() == before


def test_whoever_stops_listening_leaves_no_child(made_up):
    before = children()
    listening = engines.answers(question(made_up, "hangs"))
    assert next(listening).parameters == 1e6
    listening.close()
    assert children() == before


def test_without_its_libraries_a_dry_run_names_the_extra(tmp_path, monkeypatch):
    for package, extra in {"torch": "train", "transformers": "hf"}.items():
        monkeypatch.setattr(engines, "find_spec", lambda name, lost=package: None if name == lost else name)
        reason = answer_of(question(tmp_path, "plain")).reason
        assert package in reason
        assert f"throughput-harness[{extra}]" in reason


def started(folder):
    """Start the command, which dry-runs a small model."""
    words = (
        f"model={config(folder)} seq_len=64 device=560MB what_ifs=false techniques=[] out={folder / 'out'}"
    )
    command, pipe = [sys.executable, "-m", "harness.fit", *words.split()], subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True)


@pytest.mark.slow
def test_a_child_ends_with_a_parent_that_is_killed(tmp_path):
    parent = started(tmp_path)
    try:
        process = psutil.Process(parent.pid)
        wait_for(process.children)
        (child,) = process.children()
        wait_for(lambda: child.memory_info().rss > 1e8)  # it imports torch, with the request read
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        wait_for(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)
        assert not (tmp_path / "out").exists()
    finally:
        parent.kill()
        parent.communicate()


@pytest.mark.slow
def test_two_processes_that_ask_the_same_at_once_both_answer(tmp_path):
    both = [started(tmp_path), started(tmp_path)]
    (one, other) = [(process.communicate(timeout=250), process.returncode) for process in both]
    assert [status for _, status in (one, other)] == [DONE, DONE], (one, other)
    assert one[0][0] == other[0][0]
    (file,) = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert json.loads(file.read_text())["verdict"] == "fits"


CHUNKED = {
    "model_type": "qwen3_5_text", "num_hidden_layers": 4, "hidden_size": 128, "intermediate_size": 256,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 512,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 32,
    "linear_value_head_dim": 32, "max_position_embeddings": 4096,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
}  # fmt: skip


def chunked(techniques, **fields):
    of = {"techniques": FieldOrigin("command", "techniques")}
    return question_of(config=CHUNKED, devices=1, techniques=techniques, origins=of, **fields)


def test_a_long_sequence_in_chunks_takes_what_its_parts_take_as_sequences(monkeypatch):
    """Each part lacks the recurrent state between two chunks, which is all that differs."""
    question = chunked((("mixed_precision", {}), ("attention", {})), seq_len=1024, micro_batch_size=2)
    with DryRunChild() as child:
        whole = answer_of(question, child=child).memory
        monkeypatch.setattr(recipe, "FOLDED_TOKENS", 512)
        answer = answer_of(question, child=child)
    assert answer.memory.peaks[0].micro_batch_size == 2
    assert any("2 parts" in words for words in answer.left_out)
    assert 0.99 < answer.memory.allocated_B.likely / whole.allocated_B.likely < 1


def test_a_long_sequence_in_chunks_with_a_score_matrix_is_refused_before_it_takes_minutes():
    with pytest.raises(ConfigError, match="seq_len=8193: transformers runs qwen3_5_text by chunks"):
        recipe.folded(chunked((), seq_len=8193))
    assert recipe.folded(chunked((), seq_len=8192))[1] == 1
    folded, times = recipe.folded(chunked((("attention", {}),), seq_len=65535, micro_batch_size=2))
    assert (folded.seq_len, folded.micro_batch_size, times) == (2048, 64, 32)
