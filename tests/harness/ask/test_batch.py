"""`questions=FILE out=FILE`: an answer per line, in order, and what is wrong with a line or with a row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.ask import advise, fit
from harness.commands.entry import DONE, MISTAKE

LLAMA = {
    "kind": "pretrain", "framework": "megatron", "model": "Llama-3.1-8B", "gpus": 16, "device": "H100",
    "seq_len": 8192, "tp": 2, "micro_batch_size": 1, "global_batch_size": 64, "precision": "bf16",
    "outcome": {"runs": True},
}  # fmt: skip
ROWS: list[dict[str, Any]] = [
    {"id": "first", **LLAMA},
    {"id": "no such model", **LLAMA, "model": "nobody/knows"},
    {"id": "no such device", **LLAMA, "device": "abacus"},
    {"id": "of another kind", **LLAMA, "gpus": [8], "lora": 3},
    {"id": "last", **LLAMA, "tp": 4},
]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"id": "a"}\n{"id":', "line 2 is not JSON"),
        ('\n[1, 2]\n', "line 2 is no question"),
        ('{"model": "gpt2"}', "line 1 is no question"),
        ("3", "line 1 is no question"),
        (None, "No such file"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("command", [fit, advise], ids=["fit", "advise"])
def test_a_bad_line_is_refused_with_its_number_and_nothing_is_answered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: Any, text: str | None, says: str
) -> None:
    file, out = tmp_path / "rows.jsonl", tmp_path / "answers.jsonl"
    if text is not None:
        file.write_text(text)
    assert command.main([f"questions={file}", f"out={out}"]) == MISTAKE
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"questions={file}: {says}" in said
    assert not out.exists()


@pytest.mark.parametrize(
    "words", [["questions=x"], ["questions=x", "out=y", "seq_len=4"], ["questions=x", "y"]]
)
def test_a_file_of_questions_has_no_other_words(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert fit.main(words) == MISTAKE
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("command", [fit, advise], ids=["fit", "advise"])
def test_each_row_is_answered_or_refused_in_its_place(tmp_path: Path, command: Any) -> None:
    file, out = tmp_path / "rows.jsonl", tmp_path / "answers.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    assert command.main([f"questions={file}", f"out={out}"]) == DONE
    answers = [json.loads(line) for line in out.read_text().splitlines()]
    assert [one["id"] for one in answers] == [row["id"] for row in ROWS]
    assert [one["verdict"] for one in answers] == ["fits", "refused", "refused", "refused", "fits"]
    for one in answers:
        refused = one["verdict"] == "refused"
        assert bool(one["reason"]) == refused
        assert len(one["reason"].splitlines()) == refused
        assert ("peak_allocated_GB" in one) != refused
        assert ("step_s" in one) == (command is advise and not refused)
        assert one["answer_seconds"] >= 0
    if command is advise:
        assert answers[0]["step_low_s"] < answers[0]["step_s"] < answers[0]["step_high_s"]
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["answers.jsonl", "rows.jsonl"]
