"""Start every technique and every pair of techniques once, on every suite that trains.

python tests/benchmarks/every_pair.py [--record=FILE] [SUITE...]

Each is built on the suite's first tiny workload that takes techniques, compared with plain PyTorch and
measured; or it is refused in one line. One process tries a suite's, with ranks that last; in it, what
torch.compile captures is run by aot_eager, and on ranks by Inductor. A process that ends, crashes or answers
nothing for LIMIT_S is replaced. Each result is appended to FILE, by default tests/data/technique_pairs.jsonl,
which the gate reads. What is ok or refused there is not tried again, so delete lines to try theirs again.
Prints counts; exit status 1 where something crashed.
"""

from __future__ import annotations

import faulthandler
import json
import os
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path

ROOT = Path(__file__).parents[2]
SUPPORT = ("", "processes", "ranks", "records", "steps", "traces")
sys.path[:0] = [str(ROOT), *(str(ROOT / "tests/support" / one) for one in SUPPORT)]
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

import pytest  # noqa: E402
import technique_pairs as pairs  # noqa: E402

LIMIT_S = 300.0  # for one of them, ranks and compilers included
CHILD = "--child="


def serve(suite: str) -> None:
    """Try lists of techniques, which the input has, and write a line of JSON for each; end after a crash."""
    from cheap_sessions import cheap_sessions
    from forked_ranks import forking

    todo, start = json.load(sys.stdin)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    with pytest.MonkeyPatch.context() as patch, closing(forking(patch)) as template, cheap_sessions(template):
        pairs.compile_by_aot_eager(patch)
        fields = pairs.workload_of(suite)
        for chosen in todo:
            faulthandler.dump_traceback_later(LIMIT_S, exit=True)
            found = pairs.tried(suite, fields, tuple(chosen), start)
            answers.write(json.dumps(found._asdict()) + "\n")
            answers.flush()
            if found.status == pairs.CRASHED:
                break
        faulthandler.cancel_dump_traceback_later()


def main(words: list[str]) -> int:
    record, suites = pairs.RECORD, []
    for word in words:
        if word.startswith("--record="):
            record = Path(word.partition("=")[2])
        else:
            suites.append(word)
    for start in (False, True):  # what is refused before it starts takes seconds, so it comes first
        for suite in suites or pairs.SUITES:
            try_all(suite, record, start)
    return summary(record)


def try_all(suite: str, record: Path, start: bool) -> None:
    """Try what the record lacks, in a new process after each crash, and append what is known then."""
    known = pairs.recorded(record)
    todo = [one for one in pairs.combined() if not done(known.get((suite, one)))]
    command, pipe = [sys.executable, __file__, CHILD + suite], subprocess.PIPE

    def keep(found: pairs.Tried) -> None:
        chosen = todo.pop(0)
        if start or found.status != pairs.OK:
            with record.open("a") as file:
                file.write(json.dumps(found._asdict()) + "\n")
            said = f"{found.status} {found.reason}"[:200]
            print(f"{len(todo)} left, {suite} {'+'.join(chosen)}: {said}", flush=True)

    while todo:
        child = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, cwd=ROOT
        )
        with child:
            json.dump([todo, start], child.stdin)
            child.stdin.close()
            for line in child.stdout:
                keep(pairs.Tried(**json.loads(line)))
        if todo and child.returncode:
            ended = f"its process ended with {child.returncode}"
            keep(pairs.Tried(suite, todo[0], pairs.CRASHED, True, ended))


def done(found: pairs.Tried | None) -> bool:
    return found is not None and found.status != pairs.CRASHED


def summary(record: Path) -> int:
    """Write the latest of each in order, and print how many of each suite were what."""
    known = pairs.recorded(record)
    latest = [known[key] for key in sorted(known, key=lambda key: (key[0], len(key[1]), key[1]))]
    record.write_text("".join(json.dumps(one._asdict()) + "\n" for one in latest))
    counts = Counter((one.suite, len(one.techniques), one.status) for one in latest)
    for (suite, size, status), count in sorted(counts.items()):
        print(f"{suite}: {count} {'pairs' if size > 1 else 'alone'} {status}")
    crashed = [one for one in latest if one.status == pairs.CRASHED]
    for one in crashed:
        print(f"{one.suite} {'+'.join(one.techniques)}: {one.reason}")
    return 1 if crashed else 0


if __name__ == "__main__":
    if sys.argv[1:] and sys.argv[1].startswith(CHILD):
        serve(sys.argv[1].removeprefix(CHILD))
    else:
        sys.exit(main(sys.argv[1:]))
