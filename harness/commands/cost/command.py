"""`python -m harness.cost`: what do tokens and a training run cost, at the throughput of any results?

A record of a GPU is priced by the lists of conf/prices.yaml that have its device, or by the user's own rate.
One of a CPU or of an emulation is priced by the user's rate alone. A run that is not run yet is priced by the
adviser's prediction.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from harness.commands.entry import DONE, print_all, start
from harness.commands.grammar import datasheet
from harness.commands.results import planned
from harness.config.validation import ConfigError

if TYPE_CHECKING:
    from harness.commands.cost.priced import PricedBlock
    from harness.commands.cost.question import CostQuestion
    from harness.commands.cost.throughput import Throughput

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


def main(argv: Sequence[str]) -> int:
    """Answer one question; return the exit status."""
    return start("harness.cost", argv, USAGE, run)


def run(argv: Sequence[str]) -> int:
    """Print the answer; raises ConfigError and StoreError."""
    from harness.commands.cost.predicted import is_predicted
    from harness.commands.cost.question import asked

    if is_predicted(argv):
        return of_prediction(argv)
    print_all(answer(asked(argv)))
    return DONE


def of_prediction(argv: Sequence[str]) -> int:
    """Print what a run would cost while the ranks of a launcher, if there is one, serve."""
    from harness.commands.cost import predicted
    from harness.sweep.executors.start import executor_context

    with executor_context():
        print_all(predicted.answer(argv))
    return DONE


def answer(question: CostQuestion) -> list[str]:
    """Return the lines of the answer; raises ConfigError where nothing can be priced."""
    from harness.claims.one_machine import of_one_machine
    from harness.commands.cost.lines import block_lines, no_throughput, not_priced
    from harness.commands.cost.throughput import of_loading_alone, throughputs
    from harness.sweep.store import read_records

    records, apart = of_one_machine(planned(question.folder, read_records(question.folder)))
    found, loading = throughputs(records), of_loading_alone(records)
    if not found:
        raise ConfigError(f"{question.folder}: {no_throughput(loading)}")
    machines = machines_by_device(one.device_name for one in found)
    blocks = list(priced_blocks(question, found, machines))
    seen = {row.of for block in blocks for row in block.rows}
    reasons = not_priced([one for one in found if one not in seen], machines, loading)
    if not blocks:
        raise ConfigError(f"{question.folder}: {reasons}")
    lines = [line for block in blocks for line in block_lines(block, question.tokens)]
    lines += [f"Not priced: {reasons}."] if reasons else []
    return [*lines, *(f"{sentence}." for sentence in apart)]


def priced_blocks(
    question: CostQuestion, found: Sequence[Throughput], machines: Mapping[str, str]
) -> Iterator[PricedBlock]:
    """Yield the throughputs at the user's rate, or at each price list that has their machine."""
    from harness.commands.cost.priced import PricedBlock, priced

    if question.rate is not None:
        yield PricedBlock(None, priced(dict.fromkeys(found, question.rate)))
        return
    for prices in question.lists:
        rates = {
            one: prices.usd_per_h[machine]
            for one in found
            if one.is_of_a_gpu and (machine := machines.get(one.device_name, "")) in prices.usd_per_h
        }
        if rates:
            yield PricedBlock(prices, priced(rates))


def machines_by_device(device_names: Iterable[str]) -> dict[str, str]:
    """Return the name in conf/hardware of each device that is there, by the device's name in records."""
    from fnmatch import fnmatchcase

    from harness.config.run import names

    sheets = {name: datasheet(name) for name in names("hardware")}
    found: dict[str, str] = {}
    for device in filter(None, dict.fromkeys(device_names)):
        for name, sheet in sheets.items():
            if device == sheet["name"] or (sheet.get("device") and fnmatchcase(device, sheet["device"])):
                found.setdefault(device, name)
    return found
