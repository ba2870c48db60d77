"""What the page shows of a question: the adviser's answer, the step's timeline and each rank's memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

from harness.answer import Answer
from harness.ask.engines import ENGINES, answer_of
from harness.config.validation import ConfigError
from harness.question import Question


class PageAnswer(NamedTuple):
    """An answer with what is drawn of it."""

    answer: Answer
    timeline: Mapping[str, Any]
    memory: Mapping[str, Any]


def answer_to(question: Question) -> Answer:
    """Return the answer; raises ConfigError where it is refused."""
    answer = answer_of(question, seconds=True)
    if answer.verdict == "refused":
        raise ConfigError(answer.reason)
    return answer


def page_answer(question: Question, shown: str) -> PageAnswer:
    """Return the answer about one layout with its timeline and memory; raises ConfigError."""
    engine = import_module(ENGINES["step time"])
    answer = answer_to(question)
    return PageAnswer(answer, engine.timeline_of(question, shown), engine.memory_of_ranks(question))


def devices() -> Sequence[str]:
    """Return the devices whose seconds are known."""
    known: Sequence[str] = import_module("suites.training.of_question").COMPARED
    return known
