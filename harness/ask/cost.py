"""`python -m harness.cost`: what do tokens and a training run cost, at the throughput of any results?

A record of a GPU is priced by the lists of conf/prices.yaml that have its device, or by the user's own rate.
One of a CPU or of an emulation is priced by the user's rate alone. A run that is not run yet is priced at its
predicted speed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from harness.answer import Answer, Interval, RankedLayout
from harness.ask import prices
from harness.ask.lines import read_lines, table, wrapped
from harness.ask.words import COST, step_question, with_one_name, words_of
from harness.commands.entry import DONE, print_all, start
from harness.commands.grammar import CommandWords, datasheet, planned, read, results_folder
from harness.config.optimizations import CONF, read_yaml
from harness.config.validation import ConfigError
from harness.instruments.prices import PriceList
from harness.question import Question
from harness.units import human

if TYPE_CHECKING:
    from harness.ask.priced import Throughput

USAGE = """\
python -m harness.cost FOLDER [KEY=VALUE ...]
    what do tokens cost at the throughput of these results?

  FOLDER             results of a suite that records tokens/s, or tokens and
                     time
  rate=2.5           your price in dollars per GPU-hour, owned, reserved or on
                     demand; also 1800/month, 20/node or 14000/node/month.
                     Without it, every list of conf/prices.yaml with the device
  gpus_per_node=8    of a rate per node
  prices=NAME        one list of conf/prices.yaml, or a YAML file of your own
  tokens=1e12        tokens of the training run that is priced

python -m harness.cost model=PATH gpus=N [tokens=15e12] [rate=2.5] [KEY=VALUE]
python -m harness.cost config=FILE gpus=N [tokens=15e12] [rate=2.5] [KEY=VALUE]
    what would a run cost, before it is run? At the predicted speed of the
    fastest layout, or of a framework's own file. Other words are those of
    python -m harness.advise: device, link, seq_len, tokens_per_batch, layout,
    price (its name of rate), ...

Exit status: 0, or 2 for a mistake in the command. docs/commands/cost.md

python -m harness.cost results/reference/cost rate=2.5 tokens=15e12
python -m harness.cost model=llama-3.1-70b.json gpus=1024 tokens=15e12
"""

DEFAULT_TOKENS, LEAST_TOKENS = 1e12, 1e6


def main(argv: Sequence[str]) -> int:
    """Answer one question; return the exit status."""
    return start("harness.cost", argv, USAGE, run)


def run(argv: Sequence[str]) -> int:
    """Print the answer; raises ConfigError and StoreError."""
    if any(word.startswith(("model=", "config=")) for word in argv):
        return of_prediction(words_of(argv, COST))
    words = with_one_name(read(argv, (*prices.KEYS, "price", "tokens")))
    if len(words.paths) != 1:
        raise ConfigError("expected one FOLDER of results, or model= or config= of a run that is predicted")
    print_all(of_results(words))
    return DONE


def run_tokens(words: CommandWords) -> float:
    """Return the tokens of the training run that is priced; raises ConfigError."""
    tokens = words.number("tokens") if "tokens" in words else DEFAULT_TOKENS
    if tokens < LEAST_TOKENS:
        raise ConfigError(
            f"{words.typed['tokens']}: expected at least {LEAST_TOKENS:g}, as 15e12 for 15 trillion"
        )
    return tokens


def of_prediction(words: CommandWords) -> int:
    """Print what a run would cost at its predicted speed; return the exit status; raises ConfigError."""
    from harness.ask.engines import answer_to
    from harness.ask.fit import folder_of, keep

    tokens = run_tokens(words)
    rate, lists = prices.rates_asked(words)
    question = step_question(words)
    rates = [(rate, "your rate")] if rate is not None else list(rates_of(lists, question))
    answer = answer_to(question)
    if not answer.layouts:
        raise ConfigError("no layout fits, so that there is nothing to price")
    keep(answer, question, folder_of(question, words.text("out", "results/advise")))
    print_all(predicted_lines(answer, question, tokens, rates))
    if question.format:
        print_all(["", *read_lines(question, "show" in words)])
    return DONE


def rates_of(lists: Sequence[PriceList], question: Question) -> Iterator[tuple[float, str]]:
    """Yield dollars per GPU-hour and whose they are; raises ConfigError where no list has the device."""
    having = [one for one in lists if question.device in one.usd_per_h]
    if not having:
        raise ConfigError(f"device={question.device}: no list has its price; give rate=DOLLARS per GPU-hour")
    for one in having:
        yield one.usd_per_h[question.device], f"{one.name}: {prices.KINDS[one.kind]}, {one.date}"


def predicted_lines(
    answer: Answer, question: Question, tokens: float, rates: Sequence[tuple[float, str]]
) -> Iterator[str]:
    """Yield what the steps and the run take and cost.

    `rates`: dollars per GPU-hour, and whose they are in words.
    """
    from harness.ask.advise_lines import what_was_asked

    best = answer.layouts[0]
    assert best.step_s is not None
    steps, runs = gpu_hours(best, tokens)
    how, run = list(runs.items())[-1]
    first = rates[0][0]
    ends_of_run = run.likely, run.low, run.high
    days, *ends = (f"{each / (question.devices or 1) / 24:.3g}" for each in ends_of_run)
    yield f"{tokens:.3g} tokens take {days} days ({' … '.join(ends)}), {how}:"
    usd, *ends = (human(first * each, "USD") for each in ends_of_run)
    yield f"{run.likely:,.0f} GPU-hours, {usd} ({' … '.join(ends)}) at ${first:.3g} per GPU-hour."
    if answer.verdict != "fits":
        does = "may not fit" if answer.verdict == "depends" else "does not fit"
        yield f"This layout {does} its GPUs: python -m harness.advise has those that do."
    yield f"{best.title}: {best.step_s.likely:.3g} s per step"
    yield from what_was_asked(answer, question)
    yield ""
    listed = {"steps alone, as tuned": steps, **{f"the run, {name}": of for name, of in runs.items()}}
    yield from table([
        ["GPU-hours", "likely", "range"],
        *([of, f"{each.likely:,.0f}", f"{each.low:,.0f} … {each.high:,.0f}"] for of, each in listed.items()),
    ])  # fmt: skip
    yield ""
    rows = [["$ per GPU-hour", "steps cost", "run costs", "range", "$ per 10^6 tokens", ""]]
    for rate, whose in rates:
        alone, usd, low, high = (human(rate * each, "USD") for each in (steps.likely, *ends_of_run))
        per_token = f"{rate * run.likely / tokens * 1e6:.3g}"
        rows.append([f"{rate:.3g}", alone, usd, f"{low} … {high}", per_token, whose])
    yield from table(rows)
    factor, of_whom = goodput()
    yield from wrapped(
        f"Calculated. What the run costs is that of the run {how}. A run takes {factor.likely:.2f} times its "
        f"steps (least {factor.low:.2f}, most {factor.high:.2f} of {len(of_whom)}): restarts, failures, "
        f"evaluation, checkpoints, the batch's warm-up of {', '.join(of_whom)}. Ranges are 90 % of the "
        "seconds per step and, of a run, the factor's least and most besides, as independent. "
        "docs/commands/cost.md"
    )


def goodput() -> tuple[Interval, tuple[str, ...]]:
    """Return how many times its steps a run takes, of conf/goodput.yaml, and of which runs.

    The geometric mean of published runs, with the least and the most of them in place of a 90 % interval.
    """
    runs = {name: one["run"] / one["steps"] for name, one in read_yaml(CONF / "goodput.yaml").items()}
    likely = math.prod(runs.values()) ** (1 / len(runs))
    return Interval(min(runs.values()), likely, max(runs.values())), tuple(runs)


def gpu_hours(layout: RankedLayout, tokens: float) -> tuple[Interval, dict[str, Interval]]:
    """Return the GPU-hours of so many tokens: of steps alone as tuned, and of runs by how they run."""
    assert layout.step_s is not None
    hours, low, high = layout.gpu_hours(tokens)
    steps, factor = Interval(low, hours, high), goodput()[0]
    runs = {"as tuned": times(steps, factor)}
    if layout.as_run_s is not None:
        others = Interval(*(hours * each / layout.step_s.likely for each in layout.as_run_s))
        runs["as others run it"] = times(others, factor)
    return steps, runs


def times(one: Interval, other: Interval) -> Interval:
    """Return the product of two independent values with their ends, which lie as far in logarithms."""
    low, high = (
        math.hypot(*(math.log(getattr(each, end) / each.likely) for each in (one, other)))
        for end in ("low", "high")
    )
    likely = one.likely * other.likely
    return Interval(likely * math.exp(-low), likely, likely * math.exp(high))


def of_results(words: CommandWords) -> list[str]:
    """Return the lines about a folder of results; raises ConfigError where nothing can be priced."""
    from harness.ask.priced import block_lines, no_throughput, not_priced, throughputs
    from harness.claims.values import of_one_machine
    from harness.sweep.store import read_records

    folder = results_folder(words.paths[0])
    tokens = run_tokens(words)
    rate, lists = prices.prices_of(words)
    records, apart = of_one_machine(planned(folder, read_records(folder)))
    found, loading = throughputs(records)
    if not found:
        raise ConfigError(f"{folder}: {no_throughput(loading)}")
    machines = machines_by_device(one.device_name for one in found)
    blocks: list[tuple[PriceList | None, dict[Throughput, float]]] = []
    for each in lists:
        machine_of = {one: machines.get(one.device_name, "") for one in found if one.is_of_a_gpu}
        known = {one: each.usd_per_h[name] for one, name in machine_of.items() if name in each.usd_per_h}
        blocks += [(each, known)] if known else []
    if rate is not None:
        blocks = [(None, dict.fromkeys(found, rate))]
    seen = {one for _, rates in blocks for one in rates}
    reasons = not_priced([one for one in found if one not in seen], machines, loading)
    if not blocks:
        raise ConfigError(f"{folder}: {reasons}")
    said = [line for of, rates in blocks for line in block_lines(of, rates, tokens)]
    said += [f"Not priced: {reasons}."] if reasons else []
    return [*said, *(f"{sentence}." for sentence in apart)]


def machines_by_device(device_names: Iterable[str]) -> dict[str, str]:
    """Return the name in conf/hardware of each device that is there, by the device's name in records."""
    from harness.config.run import names

    sheets = {name: datasheet(name) for name in names("hardware")}
    found: dict[str, str] = {}
    for device in filter(None, dict.fromkeys(device_names)):
        for name, sheet in sheets.items():
            if device == sheet["name"] or (sheet.get("device") and fnmatchcase(device, sheet["device"])):
                found.setdefault(device, name)
    return found
