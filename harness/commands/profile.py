"""`python -m harness.profile`: where does the time of a training step go, by a trace of torch.profiler?"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.commands.entry import DONE, print_all, start
from harness.commands.grammar import CommandWords, peak_FLOP_per_s, read
from harness.config.validation import ConfigError
from harness.instruments.traces import shortened

if TYPE_CHECKING:
    from harness.instruments.traces.breakdown import Breakdown

USAGE = """\
python -m harness.profile TRACE... [KEY=VALUE ...]
where does the time of a training step go?

  TRACE             a trace of torch.profiler (.json, .json.gz), several ranks'
                    traces, or their folder
  against=PATH      a trace, or a folder of ranks, of the same step without what
                    is suspected
  model_FLOP=3e15   FLOP of the model per step and device, for the theoretical
                    time
  peak=989e12       FLOP/s of one device, or its name in conf/hardware (dense
                    bf16)
  frequency=1.2     a factor that a trace cannot have: peak over observed clock;
                    also instruction=, utilisation= and overlap=
  communication=[regex,regex]
                    kernels that communicate, beyond those that are recognized
                    by themselves
  clocks=aligned    align the ranks' clocks by the ends of collectives;
                    clocks=recorded: do not. Without it, they are aligned where
                    they contradict each other
  out=FOLDER        write breakdown.txt, with names in full, and
                    perfetto.json.gz, a timeline with the states and the
                    critical path (ui.perfetto.dev)

Exit status: 0, or 2 for a mistake in the command or in a trace.
docs/commands/traces.md

python -m harness.profile traces/ model_FLOP=3e15 peak=h100_80gb out=profile
"""

NUMBERS = ("model_FLOP", "instruction", "utilisation", "overlap", "frequency")
KEYS = (*NUMBERS, "peak", "against", "clocks", "out", "communication")
WHOLE = 1_000_000  # characters of a line in which no name is shortened

CLOCKS = {"aligned": True, "recorded": False}


def main(argv: Sequence[str]) -> int:
    """Answer one question; return the exit status."""
    return start("harness.profile", argv, USAGE, run)


def run(argv: Sequence[str]) -> int:
    """Print the answer; raises ConfigError and TraceError."""
    words = read(argv, KEYS)
    if not words.paths:
        raise ConfigError("expected a trace of torch.profiler, or a folder of ranks")
    if ("peak" in words) != ("model_FLOP" in words):
        raise ConfigError("the theoretical time needs both model_FLOP= and peak=; give both or none")
    print_all(answer(words))
    return DONE


def patterns(text: str) -> tuple[str, ...]:
    """Return the regular expressions of `communication=`: one, or a list in brackets; raises ConfigError."""
    listed = text.startswith("[") and text.endswith("]")
    # A comma within brackets or braces belongs to the expression.
    found = re.split(r",(?![^\[\](){}]*[\])}])", text[1:-1]) if listed else [text]
    expressions = tuple(one.strip().strip("'\"") for one in found)
    if text and not all(expressions):
        raise ConfigError(
            f"communication={shortened(text, 60)}: expected regular expressions of kernel names"
        )
    for one in filter(None, expressions):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)
                re.compile(one)
        except (re.error, OverflowError, RecursionError) as error:
            said = f"communication={shortened(one, 60)}: is no regular expression: {error}"
            raise ConfigError(said) from None
    return tuple(filter(None, expressions))


def answer(words: CommandWords) -> list[str]:
    """Return the lines of the answer, and write what was asked for; raises ConfigError and TraceError."""
    numbers = {name: words.number(name) for name in NUMBERS if name in words}
    peak = peak_FLOP_per_s(words, "peak") if "peak" in words else None
    clocks = CLOCKS[words.one_of("clocks", CLOCKS, "")] if "clocks" in words else None
    communication = patterns(words.text("communication", ""))
    from harness.instruments.traces.breakdown import breakdown
    from harness.instruments.traces.causes import advice, causes, communication_lines, sentence
    from harness.instruments.traces.kineto import read_traces, together
    from harness.instruments.traces.output import fitted, tables, terminal_width

    each = [read_traces(path) for path in words.paths]
    found = breakdown(
        each[0] if len(each) == 1 else together([trace for traces in each for trace in traces]),
        model_FLOP=numbers.pop("model_FLOP", None),
        peak_FLOP_per_s=peak,
        known_factors=numbers,
        align_clocks=clocks,
        communication=communication,
    )
    reference = None
    if (against := words.path("against")) is not None:
        reference = breakdown(read_traces(against), align_clocks=clocks, communication=communication)
    named = causes(found, reference)
    lead = sentence(found, named)
    notes = [
        *(f"Steps: the trace has no ProfilerStep; {how}." for how in [found.steps_found] if how),
        *communication_lines(found),
        *advice(found),
        *(
            f"Named: {one.name}, {100 * one.share:.1f} % of the step, at least {100 * one.at_least:.1f} %."
            for one in named
        ),
        *filter(None, [found.matching.clocks]),
        *(f"Missing: {one}." for one in found.missing),
    ]
    steps = f"{len(found.step_numbers)} step{'s' if len(found.step_numbers) > 1 else ''}"

    def lines(width: int) -> list[str]:
        shown = [lead, "", *notes]
        for table in tables(found):
            shown += ["", f"{table.title} ({steps})", *fitted(table.head, table.rows, width)]
        return shown

    out = words.path("out")
    written = [] if out is None else ["", *write(out, found, lines(WHOLE))]
    return [*lines(terminal_width()), *written]


def write(folder: Path, found: Breakdown, lines: Sequence[str]) -> list[str]:
    """Write the answer with whole names and the file for Perfetto; return where; raises ConfigError."""
    from harness.instruments.traces.output import write_perfetto

    files = [folder / "breakdown.txt", folder / "perfetto.json.gz"]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files[0].write_text("\n".join(lines) + "\n")
        write_perfetto(found, files[1])
    except OSError as error:
        raise ConfigError(f"out={folder}: cannot write: {error.strerror}") from None
    return [f"With whole names: {files[0]}", f"For ui.perfetto.dev: {files[1]}"]
