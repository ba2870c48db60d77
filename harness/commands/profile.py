"""`python -m harness.profile`: where does the time of a training step go, by a trace of torch.profiler?"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from harness.config.validation import ConfigError, nearest

if TYPE_CHECKING:
    from harness.instruments.traces.breakdown import Breakdown

USAGE = """\
python -m harness.profile TRACE... [KEY=VALUE ...]   where does the time of a training step go?

  TRACE              a trace of torch.profiler (.json, .json.gz), those of several ranks, or their folder
  against=PATH       a trace, or a folder of ranks, of the same step without what is suspected
  model_FLOP=3e15    FLOP of the model per step and device, for the theoretical time
  peak=989e12        FLOP/s of one device, or its name in conf/hardware (dense bf16)
  frequency=1.2      a factor that a trace cannot have: peak over observed clock;
                     also instruction=, utilisation= and overlap=
  clocks=aligned     align the ranks' clocks by the ends of collectives; clocks=recorded: do not.
                     Without it, they are aligned where they contradict each other
  out=FOLDER         write timeline.html, and perfetto.json.gz for ui.perfetto.dev

Exit status: 0, or 2 for a mistake in the command or in a trace. docs/traces.md

python -m harness.profile traces/ model_FLOP=3e15 peak=h100_80gb out=profile
"""

KNOWN = ("instruction", "utilisation", "overlap", "frequency")
NUMBERS = ("model_FLOP", *KNOWN)
KEYS = (*NUMBERS, "peak", "against", "clocks", "out")
CLOCKS = {"": None, "aligned": True, "recorded": False}


class ProfileCommand(NamedTuple):
    """What was typed."""

    traces: tuple[Path, ...]
    words: dict[str, str]
    numbers: dict[str, float]
    peak_FLOP_per_s: float | None
    align_clocks: bool | None


def main(argv: Sequence[str]) -> int:
    """Answer one question; return the exit status."""
    if not argv or {"-h", "--help"}.intersection(argv):
        sys.stdout.write(USAGE)
        return 0 if argv else 2
    from harness.instruments.traces.reading.error import TraceError

    try:
        sys.stdout.write("\n".join(answer(read(argv))) + "\n")
    except (ConfigError, TraceError) as error:
        sys.stderr.write(f"harness.profile: {error}\n")
        return 2
    return 0


def read(argv: Sequence[str]) -> ProfileCommand:
    """Return what `argv` asks for; raises ConfigError."""
    traces: list[Path] = []
    words: dict[str, str] = {}
    for word in argv:
        name, equals, value = word.partition("=")
        if not equals or Path(word).exists():
            traces.append(Path(word))
        elif name not in KEYS:
            near = nearest(name, KEYS)
            hint = f"did you mean {near}? " if near else ""
            raise ConfigError(f"{name}: no such key; {hint}allowed: {', '.join(KEYS)}")
        elif name in words:
            raise ConfigError(f"{name}: given twice")
        else:
            words[name] = value
    if not traces:
        raise ConfigError("expected a trace of torch.profiler, or a folder of ranks")
    if words.get("clocks", "") not in CLOCKS:
        raise ConfigError(f"clocks={words['clocks']}: expected aligned or recorded")
    if ("peak" in words) != ("model_FLOP" in words):
        raise ConfigError("the theoretical time needs both model_FLOP= and peak=; give both or none")
    numbers = {name: positive(name, words[name]) for name in NUMBERS if name in words}
    peak = peak_of(words["peak"]) if "peak" in words else None
    return ProfileCommand(tuple(traces), words, numbers, peak, CLOCKS[words.get("clocks", "")])


def positive(name: str, text: str) -> float:
    """Return a positive number; raises ConfigError."""
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0 < value < float("inf"):
        raise ConfigError(f"{name}={text}: expected a positive number")
    return value


def peak_of(text: str) -> float:
    """Return a peak in FLOP/s, or the dense bf16 peak of a device in conf/hardware; raises ConfigError."""
    from harness.config.run import names
    from harness.config.variants.optimizations import CONF, read_yaml

    if text not in names("hardware"):
        try:
            return positive("peak", text)
        except ConfigError:
            allowed = ", ".join(names("hardware"))
            raise ConfigError(
                f"peak={text}: expected a positive number of FLOP/s, or one of {allowed}"
            ) from None
    rates = read_yaml(CONF / "hardware" / f"{text}.yaml").get("matmul_FLOP_per_s", {})
    if "bf16" not in rates:
        raise ConfigError(f"peak={text}: its datasheet in conf/hardware has no bf16 peak; give a number")
    return float(rates["bf16"])


def answer(command: ProfileCommand) -> list[str]:
    """Return the lines of the answer, and write what was asked for; raises ConfigError and TraceError."""
    from harness.instruments.traces.breakdown import breakdown
    from harness.instruments.traces.causes import causes
    from harness.instruments.traces.output.sentence import TECHNIQUES, sentence
    from harness.instruments.traces.output.tables import tables
    from harness.instruments.traces.reading.kineto import read_traces, together
    from harness.instruments.traces.recorded_gains import gains

    if len(command.traces) == 1:
        traces = read_traces(command.traces[0])
    else:
        traces = together([trace for path in command.traces for trace in read_traces(path)])
    found = breakdown(
        traces,
        model_FLOP=command.numbers.get("model_FLOP"),
        peak_FLOP_per_s=command.peak_FLOP_per_s,
        known_factors={name: value for name, value in command.numbers.items() if name in KNOWN},
        align_clocks=command.align_clocks,
    )
    reference = None
    if "against" in command.words:
        reference = breakdown(read_traces(Path(command.words["against"])), align_clocks=command.align_clocks)
    named = causes(found, reference)
    lead = sentence(found, named, gains(technique for _, _, technique, _ in TECHNIQUES))
    notes = [
        *(
            f"Named: {one.name}, {100 * one.share:.1f} % of the step, at least {100 * one.at_least:.1f} %."
            for one in named
        ),
        *filter(None, [found.matching.clocks]),
        *(f"Missing: {one}." for one in found.missing),
    ]
    shown = tables(found)
    lines = [lead, "", *notes]
    for table in shown:
        lines += ["", f"{table.title} ({len(found.step_numbers)} steps)", *aligned([table.head, *table.rows])]
    if "out" in command.words:
        lines += ["", *write(command, found, lead, notes)]
    return lines


def write(command: ProfileCommand, found: Breakdown, lead: str, notes: Sequence[str]) -> list[str]:
    """Write the page and the file for Perfetto; return where they are; raises ConfigError."""
    from harness.instruments.traces.output.page import page
    from harness.instruments.traces.output.perfetto import write_perfetto
    from harness.instruments.traces.output.tables import tables

    folder = Path(command.words["out"])
    files = [folder / "timeline.html", folder / "perfetto.json.gz"]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files[0].write_text(
            page(found, f"Where the time goes: {command.traces[0].name}", lead, tables(found), notes)
        )
        write_perfetto(found, files[1])
    except OSError as error:
        raise ConfigError(f"out={folder}: cannot write: {error.strerror}") from None
    return [f"Timeline: {files[0]}", f"For ui.perfetto.dev: {files[1]}"]


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as lines with aligned columns, the first to the left."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(
            text.ljust(width) if i == 0 else text.rjust(width)
            for i, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
