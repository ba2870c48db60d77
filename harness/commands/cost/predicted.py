"""`model=` and `config=` of `harness.cost`: what a run would cost at the adviser's predicted speed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from harness.commands import prices
from harness.commands.advise.command import record_of
from harness.commands.advise.lines import layouts_of, what_was_asked
from harness.commands.advise.own_run import own_run
from harness.commands.advise.question import KEYS as ADVISE_KEYS
from harness.commands.advise.question import AdviseQuestion, question_of
from harness.commands.cost.lines import KINDS
from harness.commands.cost.question import run_tokens
from harness.commands.fit.lines import table, wrapped
from harness.commands.grammar import CommandWords, read
from harness.config.validation import ConfigError
from harness.instruments.prices import PriceList
from harness.records import Record
from harness.units import human

NOT_OF_COST = ("mine", "write")
KEYS = (*(key for key in ADVISE_KEYS if key not in NOT_OF_COST), "rate", "prices", "tokens")
HOUR_S = 3600.0


class PricedRate(NamedTuple):
    """Dollars per GPU-hour, and whose they are in words."""

    usd_per_hour: float
    of: str


def is_predicted(argv: Sequence[str]) -> bool:
    """Return whether the words ask about a run that is predicted, and not about results."""
    return any(word.startswith(("model=", "config=")) for word in argv)


def answer(argv: Sequence[str]) -> list[str]:
    """Return the lines of the answer; raises ConfigError where nothing fits, or nothing can be priced."""
    words = read(argv, KEYS)
    if words.paths:
        raise ConfigError(f"{words.paths[0]}: give a FOLDER of results, or model= or config= of a run")
    tokens = run_tokens(words)
    rate, lists = rates_asked(words)
    asked = [f"{key}={text}" for key, text in words.values.items() if key in ADVISE_KEYS and key != "price"]
    run = own_run(asked)
    question = run.asked if run else question_of(asked)
    rates = list(rates_of(rate, lists, question))
    record = record_of(question)
    if record.status != "ok":
        raise ConfigError(record.reason or str(record.status))
    found = layouts_of(record)
    if not found:
        raise ConfigError("no layout fits, so that there is nothing to price")
    own = run.own.lines() if run else ()
    return [*lines(record, question, tokens, rates), *own]


def rates_asked(words: CommandWords) -> tuple[float | None, Sequence[PriceList]]:
    """Return the user's rate or the price lists; `price` is the adviser's word for `rate`.

    Raises ConfigError. `gpus_per_node` is that of the cluster, too.
    """
    if "price" in words and ("rate" in words or "prices" in words):
        raise ConfigError(f"{words.typed['price']}: rate or prices is given, too; give one of them")
    values, typed = dict(words.values), dict(words.typed)
    if "price" in words:
        values["rate"], typed["rate"] = values["price"], typed["price"]
    if "/node" not in values.get("rate", ""):
        values.pop("gpus_per_node", None)
    else:
        values.setdefault("gpus_per_node", "8")
    return prices.prices_of(CommandWords(words.paths, values, typed))


def rates_of(
    rate: float | None, lists: Sequence[PriceList], question: AdviseQuestion
) -> Iterator[PricedRate]:
    """Yield the rates at which a run is priced; raises ConfigError where no list has the device."""
    if rate is not None:
        yield PricedRate(rate, "your rate")
        return
    device = question.device.option
    having = [one for one in lists if device in one.usd_per_h]
    if not having:
        raise ConfigError(f"device={device}: no list has its price; give rate=DOLLARS per GPU-hour")
    for one in having:
        yield PricedRate(one.usd_per_h[device], f"{one.name}: {KINDS[one.kind]}, {one.date}")


def lines(
    record: Record, question: AdviseQuestion, tokens: float, rates: Sequence[PricedRate]
) -> Iterator[str]:
    """Yield what the run takes and costs, each with the 90 % interval of its seconds per step."""
    name, best = next(iter(layouts_of(record).items()))
    yield f"{name}: {best['step_time']:.3g} s per step"
    yield from what_was_asked(record, question)
    fits = best["needed_memory"] <= best["room_for_allocator"]
    if not fits:
        yield "This layout does not fit its GPUs: python -m harness.advise has those that do."
    yield ""
    hours = gpu_hours(best, tokens)
    yield (
        f"{tokens:.3g} tokens take {in_days(hours[0], question.gpus)} days "
        f"(90 %: {in_days(hours[1], question.gpus)} … {in_days(hours[2], question.gpus)}), "
        f"{hours[0]:,.0f} GPU-hours."
    )
    rows = [["$ per GPU-hour", "run costs", "90 %", "$ per 10^6 tokens", ""]]
    for one in rates:
        usd, low, high = (one.usd_per_hour * each for each in hours)
        span = f"{human(low, 'USD')} … {human(high, 'USD')}"
        rows.append([f"{one.usd_per_hour:.3g}", human(usd, "USD"), span, f"{usd / tokens * 1e6:.3g}", one.of])
    yield from table(rows)
    yield from wrapped(
        "Calculated: steps alone at the predicted speed; evaluation, checkpoints, failures and idle hours "
        "come on top. The interval is that of the seconds per step. docs/commands/cost.md"
    )


def gpu_hours(best: Mapping[str, float], tokens: float) -> tuple[float, float, float]:
    """Return the hours of one GPU that tokens take, and the ends of their interval."""
    hours = tokens / best["tokens_per_s_per_device"] / HOUR_S
    low, high = (hours * best[f"step_time/{end}"] / best["step_time"] for end in ("low", "high"))
    return hours, low, high


def in_days(gpu_hours_of_run: float, gpus: int) -> str:
    """Return days on so many GPUs."""
    return f"{gpu_hours_of_run / gpus / 24:.3g}"
