"""`python -m harness.cost`: what do tokens and a training run cost, at the throughput of any results?

A record of a GPU is priced by the lists of conf/prices.yaml that have its device, or by the user's own rate.
One of a CPU or of an emulation is priced by the user's rate alone. A run that is not run yet is priced at its
predicted speed.

A record has a throughput by its metrics: `tokens_per_s_per_device`; `tokens_per_step` of all devices or
`tokens_per_gpu` of one, with `time`; or `throughput` of all devices, with the time of a training step. A
`throughput` without one is that of loading data alone, and is no cost of training.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from harness.answer import Answer, Interval, RankedLayout
from harness.ask.lines import read_lines, table, what_was_asked, wrapped
from harness.ask.words import COST, mistake, step_question, with_one_name, words_of
from harness.commands.entry import DONE, print_all, start
from harness.commands.grammar import CommandWords, datasheet, planned, read, results_folder
from harness.config.optimizations import BASELINE, CONF, read_yaml
from harness.config.validation import ConfigError, unknown
from harness.instruments.prices import PriceList, price_lists, refuse_confused
from harness.question import Question
from harness.records import Origin, Record, Status, measurement, without_wrong
from harness.units import counted, human, legend, marked, number

if TYPE_CHECKING:
    from harness.report.results import Value

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

KEYS = ("rate", "gpus_per_node", "prices")
RATE = re.compile(r"(\d+(?:\.\d*)?(?:[eE][-+]?\d+)?)(/node)?(/month|/h)?")
RATES = "dollars per GPU-hour above 0, as 2.5, 20/node, 1800/month or 14000/node/month"
HOURS_PER_MONTH, HOUR_S = 730.0, 3600.0

KINDS = {"owned": "what it costs an owner", "reserved": "rented by contract", "on_demand": "rented on demand"}
"""Of price lists, in words."""

BAND = "band"
"""Method whose samples are the ends of a range, not repeats."""

STEP_TIMES = ("time", "step_time")
"""Metrics of the seconds of a training step: those of a suite that trains."""

HEADS = (
    *("Workload", "Variant", "Tokens/s per device", "$/h"),
    *("$/Mtoken", "Change", "Device-hours", "Run costs"),
)

ONE_RATE = "changes are those of throughput alone; prices=NAME has a price of each"
GIVE_RATE = "give rate=DOLLARS per GPU-hour"


def main(argv: Sequence[str]) -> int:
    """Answer one question; return the exit status."""
    return start("harness.cost", argv, USAGE, run)


def run(argv: Sequence[str]) -> int:
    """Print the answer; raises ConfigError and StoreError."""
    if any(word.startswith(("model=", "config=")) for word in argv):
        return of_prediction(words_of(argv, COST))
    words = with_one_name(read(argv, (*KEYS, "price", "tokens")))
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
    rate, lists = rates_asked(words)
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
        yield one.usd_per_h[question.device], f"{one.name}: {KINDS[one.kind]}, {one.date}"


def predicted_lines(
    answer: Answer, question: Question, tokens: float, rates: Sequence[tuple[float, str]]
) -> Iterator[str]:
    """Yield what the steps and the run take and cost.

    `rates`: dollars per GPU-hour, and whose they are in words.
    """
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
    from harness.claims.values import of_one_machine
    from harness.sweep.store import read_records

    folder = results_folder(words.paths[0])
    tokens = run_tokens(words)
    rate, lists = prices_of(words)
    records, apart = of_one_machine(planned(folder, read_records(folder)))
    found, loading = throughputs(records)
    if not found:
        nothing = "no record has a throughput; expected tokens/s, or tokens_per_step and time"
        if loading:
            nothing = f"no throughput of training; {loading_only(loading)}"
        raise ConfigError(f"{folder}: {nothing}")
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


def prices_of(words: CommandWords) -> tuple[float | None, Sequence[PriceList]]:
    """Return the rate in dollars per GPU-hour, or None and the price lists; raises ConfigError."""
    if "rate" in words and "prices" in words:
        raise ConfigError("rate and prices: give one of the two")
    if "gpus_per_node" in words and "/node" not in words.text("rate", ""):
        raise ConfigError(f"{words.typed['gpus_per_node']}: read only with a rate per node, as rate=20/node")
    return (rate_of(words), ()) if "rate" in words else (None, lists_of(words.text("prices", "")))


def rates_asked(words: CommandWords) -> tuple[float | None, Sequence[PriceList]]:
    """Return the rate or the price lists of a predicted run; `gpus_per_node` is its cluster's, too."""
    values = dict(words.values)
    if "/node" not in values.get("rate", ""):
        values.pop("gpus_per_node", None)
    else:
        values.setdefault("gpus_per_node", "8")
    return prices_of(replace(words, values=values))


def rate_of(words: CommandWords) -> float:
    """Return dollars per GPU-hour; raises ConfigError."""
    typed = words.typed["rate"]
    found = RATE.fullmatch(words.values["rate"])
    if found is None or not 0 < float(found[1]) < float("inf"):
        raise ConfigError(f"{typed}: expected {RATES}")
    if found[2] and "gpus_per_node" not in words:
        raise ConfigError(f"{typed}: a rate per node needs gpus_per_node=NUMBER")
    gpus = words.whole("gpus_per_node", 1)
    hours = HOURS_PER_MONTH if found[3] == "/month" else 1.0
    with mistake():
        return refuse_confused(float(found[1]) / gpus / hours, typed, "/node and gpus_per_node")


def lists_of(text: str) -> tuple[PriceList, ...]:
    """Return the lists of conf/prices.yaml, one by its name, or those of a file; raises ConfigError."""
    from harness.claims import load

    own = text.endswith((".yaml", ".yml"))
    with mistake():
        lists = price_lists(load.read_yaml(Path(text) if own else CONF / "prices.yaml"))
    names = [one.name for one in lists]
    if text and not own and text not in names:
        raise unknown(f"prices={text}", text, names)
    return tuple(one for one in lists if own or text in ("", one.name))


class Throughput(NamedTuple):
    """Tokens/s of one device, by one method, over all repeats of a variant on a workload."""

    workload: str
    variant: str
    method: str
    tokens_per_s: float
    origin: str
    device: str  # cpu | cuda | simulated, "" where it is not stated
    device_name: str

    @property
    def is_of_a_gpu(self) -> bool:
        """Return whether it was obtained on a GPU or for one, and not on a CPU or in an emulation."""
        return self.device == "cuda" and self.origin != Origin.EMULATED


def throughputs(records: Iterable[Record]) -> tuple[list[Throughput], int]:
    """Return the throughput of each variant on each workload by each method, workloads in their order.

    And how many variants on a workload have a throughput and no time of a training step: of loading alone.
    """
    from harness.report.results import Value, summarize

    right = [one for one in without_wrong(records) if one.status == Status.OK]
    cells: dict[tuple[str, str], list[Record]] = {}
    for one in right:
        cells.setdefault((one.cell.workload, one.cell.optimization), []).append(one)
    medians: dict[tuple[str, str], list[Value]] = {}
    for value in (Value(*row) for row in summarize(right).itertuples(index=False, name=None)):
        if value.method != BAND and value.median > 0:
            medians.setdefault(value[:2], []).append(value)
    found = []
    for place, repeats in cells.items():
        of = repeats[0].conditions
        device = of.get("device", ""), of.get("device_name", "")
        values = medians.get(place, [])
        metric, per_s = tokens_per_s(repeats[0], {value.metric for value in values})
        for value in values:
            if value.metric == metric:
                found.append(Throughput(*place, value.method, per_s(value.median), value.origin, *device))
    loading = sum(any(of_loading(one) for one in repeats) for repeats in cells.values())
    first = list(dict.fromkeys(one.workload for one in found))
    return sorted(found, key=lambda one: first.index(one.workload)), loading


def tokens_per_s(record: Record, metrics: Collection[str]) -> tuple[str, Callable[[float], float]]:
    """Return which of a record's metrics has its tokens/s of one device, and how; "" for none."""
    from harness.report.training import TOKENS, devices

    count = devices(record.conditions)
    of_all, of_one = (measurement(record, metric) for metric in ("tokens_per_step", "tokens_per_gpu"))
    if TOKENS in metrics:
        return TOKENS, lambda value: value
    if "time" in metrics and (of_one or of_all):
        tokens = of_one.samples[0] if of_one else of_all.samples[0] / count if of_all else 0.0
        return "time", lambda seconds: tokens / seconds
    return "" if of_loading(record) else "throughput", lambda value: value / count


def of_loading(record: Record) -> bool:
    """Return whether a record has a throughput and no time of a training step."""
    return bool(measurement(record, "throughput")) and not any(
        measurement(record, metric) for metric in STEP_TIMES
    )


def block_lines(prices: PriceList | None, rates: Mapping[Throughput, float], tokens: float) -> Iterator[str]:
    """Yield a heading, throughputs at the prices of a list, or at the user's rate, and an empty line.

    `rates`: dollars per hour of one GPU.
    """
    if prices is None:
        rate, names = next(iter(rates.values())), list(dict.fromkeys(one.device_name for one in rates))
        yield f"At your rate of {number(rate)} $ per GPU-hour, a run of {tokens:.3g} tokens."
        if len(names) > 1:
            yield f"One rate for {' and '.join(name or 'unnamed devices' for name in names)}: {ONE_RATE}."
        if others := sum(not one.is_of_a_gpu for one in rates):
            yield (
                f"{counted(others, 'throughput is', 'throughputs are')} of a CPU or of an emulation: "
                "priced at your rate, they say nothing about the cost on a GPU."
            )
    else:
        yield f"{prices.name}: {KINDS[prices.kind]}, {prices.date}, a run of {tokens:.3g} tokens."
        yield f"Source: {prices.source}."
        for machine, why in prices.second_hand.items():
            if prices.usd_per_h[machine] in rates.values():
                yield f"Second-hand price of {machine}: {why}."
    usd_per_token = {one: rate / HOUR_S / one.tokens_per_s for one, rate in rates.items()}
    base = {(one.workload, one.method): usd for one, usd in usd_per_token.items() if one.variant == BASELINE}
    rows, changes = [HEADS], False
    for one, usd in usd_per_token.items():
        other = None if one.variant == BASELINE else base.get((one.workload, one.method))
        changes |= other is not None
        rows.append((
            one.workload,
            f"{one.variant}, {one.method}".removesuffix(", "),
            marked(number(one.tokens_per_s), one.origin),
            number(rates[one]),
            number(usd * 1e6),
            f"{100 * (usd / other - 1):+.1f} %".replace("-", "−") if other is not None else "",
            number(tokens / one.tokens_per_s / HOUR_S),
            human(usd * tokens, "USD"),
        ))  # fmt: skip
    yield from table(rows, texts=2)
    if changes:
        yield "Change: dollars per token over those of the workload's baseline by the same method."
    yield legend(one.origin for one in rates)
    yield ""


def loading_only(count: int) -> str:
    """Return why throughputs of loading data have no price."""
    which = counted(count, "throughput is", "throughputs are")
    return f"{which} of loading data without training, which is not what a token costs"


def not_priced(left_out: Sequence[Throughput], machines: Mapping[str, str], loading: int = 0) -> str:
    """Return which throughputs have no price and what would give them one; "" for none."""
    others = sum(not one.is_of_a_gpu for one in left_out)
    names = {one.device_name for one in left_out if one.is_of_a_gpu}
    unknown = sorted(name or "unnamed GPU" for name in names if name not in machines)
    unlisted = sorted({machines[name] for name in names if name in machines})
    parts = [
        f"{counted(others, 'throughput')} of a CPU or of an emulation; {GIVE_RATE}" if others else "",
        f"{', '.join(unknown)} is not in conf/hardware; {GIVE_RATE}" if unknown else "",
        f"no list has a price of {', '.join(unlisted)}; {GIVE_RATE}" if unlisted else "",
        loading_only(loading) if loading else "",
    ]
    return "; ".join(filter(None, parts))
