"""`questions=FILE out=FILE`: a file of questions, one JSON object per line, and an answer per line.

A row with `config`, or with nothing but words of the command, is asked as they are. Others are published
runs, in two forms; the table of suites/training/step_time types both at the border.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from harness.answer import on_disk, refused
from harness.ask.engines import DryRunChild, answer_of
from harness.ask.words import FIT, QUESTION, question_from, words_of
from harness.commands.entry import DONE
from harness.commands.grammar import read
from harness.config.validation import ConfigError
from harness.question import Question


def answer_file(argv: Sequence[str], seconds: bool) -> int:
    """Answer a file of questions; return the exit status, 0 whatever the answers; raises ConfigError."""
    words = read(argv, ("questions", "out"))
    if "out" not in words:
        raise ConfigError("out: missing; give out=FILE, where the answers are written")
    path, out = Path(words.values["questions"]), Path(words.values["out"])
    rows = list(read_rows(path))
    part = out.with_name(f"{out.name}.{os.getpid()}")
    with part.open("w", encoding="utf-8") as file:
        for answer in answers_of(rows, seconds):
            file.write(json.dumps(answer) + "\n")
    part.replace(out)
    return DONE


def read_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of a file; raises ConfigError with the number of a line that is no question."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "is not text in UTF-8"
        raise ConfigError(f"questions={path}: {reason}") from error
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ConfigError(f"questions={path}: line {number} is not JSON: {error}") from None
        if not isinstance(row, dict) or "id" not in row:
            raise ConfigError(f"questions={path}: line {number} is no question: an object with an id")
        yield row


def is_of_steps(row: Mapping[str, Any]) -> bool:
    """Return whether a row is of the older form, of steps alone."""
    return isinstance(row.get("layout"), dict) or isinstance(row.get("among"), list)


def answers_of(rows: Sequence[Mapping[str, Any]], seconds: bool) -> Iterator[Mapping[str, Any]]:
    """Yield an answer for each row: of a row of the older form its prediction."""
    from harness.frameworks.models import published_model

    def config_of(name: str) -> Mapping[str, Any] | None:
        return getattr(published_model(name), "config", None)

    steps = import_module("suites.training.step_time.questions")
    predictions = iter(steps.answers([row for row in rows if is_of_steps(row)]))
    with DryRunChild() as child:
        for row in rows:
            if is_of_steps(row):
                yield next(predictions)
                continue
            start = time.monotonic()
            has_words = "config" in row or row.keys() - {"id"} <= set(QUESTION)
            try:
                question = of_words(row) if has_words else steps.question_of_row(row, config_of)
            except (ConfigError, ValueError) as error:
                answer = refused(str(error))
            except Exception as error:  # of a value of another kind; the other rows are answered
                line = (str(error) or type(error).__name__).splitlines()[0][:200]
                answer = refused(f"a value of this row is of another kind: {line}")
            else:
                answer = answer_of(question, seconds, child, "asked")
            taken = answer.with_(answer_s=time.monotonic() - start)
            yield {"id": row["id"], **on_disk(taken)}


def of_words(row: Mapping[str, Any]) -> Question:
    """Return the question of a row whose keys are the words of `harness.fit`; raises ConfigError."""
    if other := sorted({"oom", "out", "questions", "write"} & row.keys()):
        raise ConfigError(f"{other[0]}: no word of a question")
    given = {key: value if isinstance(value, str) else json.dumps(value) for key, value in row.items()}
    return question_from(words_of([f"{key}={value}" for key, value in given.items() if key != "id"], FIT))
