"""Which files a question to harness.fit goes through, from the command to the first printed line.

    python tests/benchmarks/files_on_the_way.py config=x.toml devices=8

prints them for the parent and for the child that dry-runs, in the order of their first call. Calls made while
a module is being imported do not count.
"""

import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PLACES = tuple(f"{ROOT / top}/" for top in ("harness", "suites"))


class FirstLine(Exception):
    """The first line of the answer was printed."""


class Files:
    def __init__(self) -> None:
        self.seen: dict[str, None] = {}
        self.importing = threading.local()

    def profile(self, frame: FrameType, event: str, _: Any) -> None:
        if event not in ("call", "return"):
            return
        depth = getattr(self.importing, "depth", 0)
        if frame.f_code.co_name == "<module>":
            self.importing.depth = depth + (1 if event == "call" else -1)
        elif event == "call" and not depth and frame.f_code.co_filename.startswith(PLACES):
            self.seen.setdefault(str(Path(frame.f_code.co_filename).relative_to(ROOT)))

    def during(self, run: Callable[[], object]) -> list[str]:
        threading.setprofile(self.profile)
        sys.setprofile(self.profile)
        try:
            with suppress(FirstLine):
                run()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
        return list(self.seen)


def in_parent(words: list[str]) -> tuple[list[str], Any]:
    """Return the files of the parent, and the request that it sends to the child, if there is one."""
    from harness.ask import engines, fit
    from harness.commands import entry

    sent = []
    write, answers = entry.print_all, engines.DryRunChild.answers

    def kept(child: Any, request: Any) -> Any:
        sent.append(request)
        return answers(child, request)

    def first(lines: Any) -> None:
        write(lines)
        raise FirstLine

    engines.DryRunChild.answers = kept  # type: ignore[method-assign]
    for module in (fit, entry):
        module.print_all = first
    found = Files().during(lambda: fit.main(words))
    return found, sent[0] if sent else None


def in_child(request: Any) -> list[str]:
    from harness.ask.engines import ENGINES

    engine = import_module(ENGINES["dry run"])
    return Files().during(lambda: next(engine.answers(request)))


def main(words: list[str]) -> None:
    parent, request = in_parent(words)
    print(f"\n{len(parent)} files in the parent", *parent, sep="\n  ")
    if request is not None:
        child = in_child(request)
        print(f"\n{len(child)} files in the child", *child, sep="\n  ")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main(sys.argv[1:])
