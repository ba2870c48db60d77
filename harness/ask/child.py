"""The child of questions: for each request it writes the answers of an engine as lines, then an empty one.

It ends with its parent. It has one thread, so that an engine may fork.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import BinaryIO

gc.disable()  # while libraries are imported, in a fifth less time; the engine enables it

import msgspec  # noqa: E402

from harness.answer import Answer, refused  # noqa: E402
from harness.instruments.process import die_with_parent  # noqa: E402
from harness.question import DryRunRequest  # noqa: E402
from harness.records import Unavailable  # noqa: E402

AnswersOf = Callable[[DryRunRequest], Iterator[Answer]]


def main(engine: str, lifeline: int) -> None:
    """Answer the requests on standard input; what a library prints goes to standard error."""
    die_with_parent(lifeline)
    out, sys.stdout = os.fdopen(os.dup(1), "wb"), sys.stderr
    os.dup2(2, 1)  # for what a library of C prints
    answers = import_module(engine).answers
    for line in sys.stdin.buffer:
        answer_request(line, answers, out)


def answer_request(line: bytes, answers: AnswersOf, out: BinaryIO) -> None:
    """Write the answers to one request, each as soon as it is known, and an empty line."""
    try:
        for answer in answers(msgspec.json.decode(line, type=DryRunRequest)):
            out.write(msgspec.json.encode(answer) + b"\n")
            out.flush()
    except Unavailable as error:
        out.write(msgspec.json.encode(refused(str(error))) + b"\n")
    out.write(b"\n")
    out.flush()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
