"""Questions that are asked at the same time from one folder: real processes, one of which is killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

from harness.commands.fit.question import question_of
from harness.config.code_fingerprint import ROOT
from harness.sweep.store import read_records

CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 1,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 64,
}

HAVING_A_TURN = """
import sys
from pathlib import Path
from harness.sweep.turn import turn

with turn(Path(sys.argv[1])):
    print("here", flush=True)
    sys.stdin.readline()
"""


def fit_words(folder: Path, seq_len: int) -> list[str]:
    file = folder / "small.json"
    file.write_text(json.dumps(CONFIG))
    words = [f"model={file}", "device=1GB", f"seq_len={seq_len}", "what_ifs=false", "techniques=[]"]
    return [*words, f"out={folder}/fit"]


def start(*command: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, *command], cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True
    )


def having_a_turn(folder: Path) -> subprocess.Popen[str]:
    """Start a process that has its turn until it reads a line."""
    return start("-c", HAVING_A_TURN, str(folder))


def test_equal_questions_share_their_answer_and_others_do_not_wait(tmp_path: Path) -> None:
    asked = [fit_words(tmp_path, tokens) for tokens in (16, 16, 32)]
    processes = [start("-m", "harness.fit", *words) for words in asked]
    answers = [(*process.communicate(timeout=300), process.returncode) for process in processes]
    assert [status for _, _, status in answers] == [0, 0, 0], answers
    first, second, other = (output for output, _, _ in answers)
    assert first == second
    assert first != other
    folders = {question_of(words).run.out for words in asked}
    assert len(folders) == 2
    for folder in folders:
        assert len((folder / "records.jsonl").read_text().splitlines()) == 1
        assert len(read_records(folder)) == 1


def test_who_comes_second_waits_and_says_for_whom(tmp_path: Path) -> None:
    folder = tmp_path / "results" / "fit"
    first = having_a_turn(folder)
    assert first.stdout is not None
    assert first.stdout.readline() == "here\n"
    second = having_a_turn(folder)
    assert second.stderr is not None
    assert f"waiting for another process (pid {first.pid})" in second.stderr.readline()
    first.communicate("go on\n", timeout=60)
    output, _ = second.communicate("go on\n", timeout=60)
    assert (first.returncode, second.returncode, output) == (0, 0, "here\n")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_killed_process_leaves_no_lock(tmp_path: Path) -> None:
    killed = having_a_turn(tmp_path)
    assert killed.stdout is not None
    assert killed.stdout.readline() == "here\n"
    killed.send_signal(signal.SIGKILL)
    killed.communicate(timeout=60)
    assert having_a_turn(tmp_path).communicate("go on\n", timeout=60) == ("here\n", "")
