"""Answer a file of questions: python -m suites.training.step_time.questions questions=FILE out=FILE."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from suites.training.step_time.questions.answers import answers


def main(words: list[str]) -> None:
    """Answer the questions of a file, a JSON object a line."""
    given = dict(word.split("=", 1) for word in words)
    lines = Path(given["questions"]).read_text().splitlines()
    said = answers([json.loads(line) for line in lines if line.strip()])
    Path(given["out"]).write_text("".join(json.dumps(one) + "\n" for one in said))


if __name__ == "__main__":
    main(sys.argv[1:])
