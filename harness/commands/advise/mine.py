"""`mine=` of `harness.advise`: the user's own step, as seconds or as the log of their run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from harness.commands.grammar import CommandWords
from harness.config.validation import ConfigError

if TYPE_CHECKING:
    from harness.config.own_files.logs.read import OwnLog, Steady
    from harness.config.own_files.setup import OwnSetup

DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|min)")


class OwnStep(NamedTuple):
    """The user's own step."""

    seconds: float
    said: tuple[str, ...]  # what a log says, in lines


def own_step(words: CommandWords, fields: Mapping[str, object], setup: OwnSetup | None) -> OwnStep:
    """Return `mine`; raises ConfigError.

    `fields`: of the workload of suite layouts; `setup`: of the file that asked.
    """
    text = words.values["mine"]
    match = DURATION.fullmatch(text)
    if match is not None and float(match[1]) > 0:
        seconds = float(match[1]) * {"ms": 1e-3, "s": 1.0, "min": 60.0}[match[2]]
        return OwnStep(seconds, tuple(other_counts(log_setup(fields, setup), seconds)))
    path = Path(text)
    if not path.is_file():
        raise ConfigError(
            f"{words.typed['mine']}: expected the seconds of your step, as 4.1s or 850ms, or a log's file"
        )
    from harness.config.own_files.logs.read import read_log

    own = log_setup(fields, setup)
    try:
        log = read_log(path.read_text(encoding="utf-8", errors="replace"), own)
        steady = seconds_of(log, own)
        lines = [*said(path, log, steady, own), *other_counts(own, steady.median)]
        return OwnStep(steady.median, tuple(lines))
    except ValueError as error:
        raise ConfigError(f"{words.typed['mine']}: {error}") from error


def log_setup(fields: Mapping[str, object], setup: OwnSetup | None) -> OwnSetup:
    """Return the run that was asked about, as a log's reader has it."""
    from harness.commands.fit.written_layout import setup_of_workload

    batch = fields["global_batch_size"]
    found = replace(
        setup_of_workload(fields, setup),
        dp=None,
        tp=int(str(fields["tp"])),
        pp=int(str(fields["pp"])),
        cp=int(str(fields["cp"])),
        micro_batch_size=int(str(fields["micro_batch_size"])),
        global_batch_size=int(str(batch)) if batch else None,
    )
    return found if batch is None else replace(found, gradient_accumulation_steps=None)


def other_counts(setup: OwnSetup, step_s: float) -> Iterator[str]:
    """Yield the step's TFLOP/s as each framework counts them: of another count, a lower number is no gap."""
    from harness.commands.fit.lines import wrapped
    from harness.commands.model_shape import shape_of
    from harness.instruments.transformer.flop import CONVENTIONS, flop_per_token

    if setup.global_batch_size is None or setup.model is None or not setup.devices or not setup.seq_len:
        return
    per_gpu = setup.global_batch_size * setup.seq_len / setup.devices / step_s
    try:
        shape = shape_of(setup.model)
    except ValueError:  # the cell refuses such a model, with its reason
        return
    rates = {name: per_gpu * flop_per_token(name, shape, setup.seq_len) for name in CONVENTIONS}
    counted = ", ".join(f"{rate / 1e12:.0f} as {name}" for name, rate in rates.items())
    yield from wrapped(f"Yours in TFLOP/s per GPU is {counted} counts FLOP: compare numbers of one count.")


def seconds_of(log: OwnLog, setup: OwnSetup) -> Steady:
    """Return a log's seconds per step, from its TFLOP/s where it has neither them nor tokens.

    Raises ValueError where they do not follow.
    """
    from harness.commands.model_shape import shape_of
    from harness.config.own_files.logs.read import Steady
    from harness.instruments.transformer.flop import flop_per_token

    batch_known = setup.global_batch_size is not None or setup.gradient_accumulation_steps is not None
    found = log.metrics.get("step_s")
    printed = not any("seconds per step follow" in note for note in log.notes)
    if found is not None and (printed or batch_known):
        return found
    rate = log.metrics.get("FLOP_per_s")
    if rate is None or log.convention is None or not batch_known or setup.model is None:
        raise ValueError(
            f"{log.framework}'s log has {', '.join(log.metrics)}, of which no seconds per step follow; "
            "global_batch_size= gives the sequences of one"
        )
    sequences = setup.micro_batch_size * setup.micro_batches() * setup.dp_of()
    tokens = sequences * (setup.seq_len or 0) / (setup.dp_of() * setup.model_ranks)
    work = tokens * flop_per_token(log.framework, shape_of(setup.model), setup.seq_len or 0)
    return Steady(work / rate.median, work / rate.high, work / rate.low, rate.lines)


def said(path: Path, log: OwnLog, seconds: Steady, setup: OwnSetup) -> Iterator[str]:
    """Yield what a log says, and its TFLOP/s by this command's formula."""
    from harness.commands.fit.lines import wrapped

    rate = log.value("tokens_per_s")
    tokens = f", {rate:,.0f} tokens/s per GPU" if rate else ""
    yield from wrapped(
        f"{path.name}, {log.framework}'s: {seconds.median:.3g} s per step (half of {seconds.lines} lines: "
        f"{seconds.low:.3g} … {seconds.high:.3g}; the first {log.left_out} are left out){tokens}."
    )
    flop = log.value("FLOP_per_s")
    if flop is not None and log.convention is not None and setup.model is not None:
        from harness.commands.model_shape import shape_of
        from harness.instruments.transformer.flop import reconciled

        ours = reconciled(flop, log.framework, shape_of(setup.model), setup.seq_len or 0)
        yield from wrapped(
            f"Its {flop / 1e12:.0f} TFLOP/s count {log.convention.formula}; by this answer's formula they "
            f"are {ours / 1e12:.0f}."
        )
    elif flop is not None:
        yield from wrapped(f"How {log.framework} counts its {flop / 1e12:.0f} TFLOP/s is not known here.")
    for note in log.notes:
        yield from wrapped(f"{note[0].upper()}{note[1:]}.")
