"""`config=` of `harness.advise`: a framework's own file as a question of its layout and one of all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from harness.commands.advise.explained import of_mine, of_nearest
from harness.commands.advise.lines import layouts_of
from harness.commands.advise.question import KEYS, AdviseQuestion, question_of
from harness.commands.fit.answer import GB
from harness.commands.fit.lines import wrapped
from harness.commands.fit.own_layout import OwnLayout, of_setup, own_setup
from harness.commands.grammar import read
from harness.records import Record

OF_ONE_LAYOUT = ("layout", "micro_batch_size", "recompute", "mine")
"""Words that a search does not have."""


class OwnRun(NamedTuple):
    """A framework's file as questions."""

    own: OwnLayout
    asked: AdviseQuestion  # of the file's layout
    others: AdviseQuestion  # of every layout


def own_run(argv: Sequence[str]) -> OwnRun | None:
    """Return the questions of `config=`; None without it. Raises ConfigError."""
    given = read(argv, KEYS)
    if "config" not in given:
        return None
    gpus = given.whole("gpus", 0) if "gpus" in given else None
    out = Path(given.text("out", "results/advise"))
    own = of_setup(given, own_setup(given), gpus, "gpus", out, whole_batch=True)
    asked = question_of(own.words, own.setup)
    return OwnRun(own, asked, question_of(searching(own.words)))


def searching(words: Sequence[str]) -> list[str]:
    """Return the words of a question about every layout, without those of one."""
    return [word for word in words if word.partition("=")[0] not in OF_ONE_LAYOUT]


def fits(record: Record) -> bool:
    """Return whether the one layout of a record fits."""
    (one,) = layouts_of(record).values()
    return one["needed_memory"] <= one["room_for_allocator"]


def lines(run: OwnRun, record: Record, others: Record) -> Iterator[str]:
    """Yield the seconds of the file's own layout, how they compare, and how much others gain."""
    ((name, one),) = layouts_of(record).items()
    low, high = one["step_time/low"], one["step_time/high"]
    rate, memory = one["model_flop_rate"] / 1e12, f"{GB(one['needed_memory'])} of"
    no = "" if fits(record) else ", which does not fit"
    yield f"{run.own.path.name}: {name}: {one['step_time']:.3g} s per step (90 %: {low:.3g} … {high:.3g})"
    yield (
        f"  {rate:.0f} TFLOP/s per GPU, {one['mfu']:.0%} MFU, "
        f"{one['tokens_per_s_per_device']:,.0f} tokens/s per GPU; {memory} "
        f"{GB(one['room_for_allocator'])} GB{no}"
    )
    yield from run.asked.mine_said
    if run.asked.mine_s is not None:
        yield from of_mine(record, run.asked.mine_s, one)
    yield from of_nearest(record)
    found = layouts_of(others)
    if found:
        best = next(iter(found.values()))
        gain = best["tokens_per_s_per_device"] / one["tokens_per_s_per_device"]
        yield from wrapped(
            f"The first of all layouts below has {gain:.2f} times its tokens/s."
            if gain > 1.005
            else "No layout below is predicted to be more than 0.5 % faster."
        )
    yield ""
