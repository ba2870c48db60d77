"""Where torch is not installed, the account of transformers' code answers what a dry run would."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from small_config import config

from harness.ask import engines
from harness.ask.engines import WITHOUT_TORCH, answer_of, choose
from harness.ask.words import FIT, question_from, words_of
from harness.question import Question

WITHIN = 0.01
"""As far as the account of transformers' code is from a dry run: tests/support/steps/account_pairs.py."""


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "find_spec", lambda name: None if name == "torch" else find_spec(name))


def asked(folder: Path, words: str) -> Question:
    return question_from(words_of([f"model={config(folder)}", *words.split()], FIT))


@pytest.mark.usefixtures("absent")
def test_the_account_answers(tmp_path: Path) -> None:
    answer = answer_of(asked(tmp_path, "devices=2"))
    assert (answer.engine, answer.why) == WITHOUT_TORCH == choose(asked(tmp_path, "devices=2"))
    assert answer.conditions["program"] == "transformers"
    assert answer.verdict == "fits"


@pytest.mark.slow
@pytest.mark.parametrize("words", ["devices=2", "devices=1 recompute=full micro_batch_size=2"])
def test_it_has_the_bytes_of_the_dry_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    dry_run = answer_of(asked(tmp_path, words), extent="asked")
    monkeypatch.setattr(engines, "find_spec", lambda name: None if name == "torch" else find_spec(name))
    account = answer_of(asked(tmp_path, words))
    assert dry_run.memory
    assert account.memory
    assert (dry_run.engine, account.engine) == ("dry run", "account")
    expected = pytest.approx(dry_run.memory.peaks[0].allocated_B, rel=WITHIN)
    assert sum(account.memory.parts_B.values()) == expected


@pytest.mark.usefixtures("absent")
@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("devices=2 recompute=selective", "does not follow selective recompute"),
        ("devices=2 compiled=true", "does not follow torch.compile"),
        ("devices=2 optimizer=muon", "optimizer muon"),
    ],
)
def test_what_it_does_not_follow_is_refused_with_what_would_answer(
    tmp_path: Path, words: str, says: str
) -> None:
    answer = answer_of(asked(tmp_path, words))
    assert answer.verdict == "refused"
    assert says in answer.reason
    assert answer.reason.endswith("a dry run needs torch: pip install 'throughput-harness[train]'")
