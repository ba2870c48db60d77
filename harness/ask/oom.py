"""`oom=FILE` of `harness.fit`: an out-of-memory message explained, with the question that it is about."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.ask.lines import wrapped
from harness.ask.words import mistake, question_from
from harness.commands.grammar import CommandWords
from harness.config.validation import ConfigError

if TYPE_CHECKING:
    from harness.frameworks.oom.explain import OomExplained

FRAGMENTATION = {
    "yes": "torch holds enough unused memory, in pieces",
    "partly": "torch's unused memory and the free memory together would be enough",
    "no": "torch's unused memory would not be enough",
    "unknown": "the message does not say what torch holds unused",
}


def lines(words: CommandWords) -> list[str]:
    """Return the lines that explain a message; raises ConfigError."""
    from harness.frameworks.oom.explain import read_oom

    path = Path(words.values["oom"])
    question = question_from(words) if "config" in words or "model" in words else None
    given = [key for key in words.values if key != "oom"]
    if question is None and given:
        raise ConfigError(f"{given[0]}: needs model= or config=, to name the tensor of oom={path}")
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ConfigError(f"oom={path}: {error.strerror or error}") from error
    with mistake(f"oom={path}: "):
        return list(explained(read_oom(text, question, shape_of)))


def shape_of(config: Any) -> Any:
    """Return the shape of a config.json's content."""
    return import_module("suites.training.layouts.shape_of_config").shape_of_config(config)


def explained(found: OomExplained) -> Iterator[str]:
    """Yield what an out-of-memory message says, in sentences."""
    message, where = found.message, found.where
    rank = "" if message.rank is None else f" on rank {message.rank}"
    line = f" ({where.line})" if where.line else ""
    place = f", at {where.place}{line}" if where.place else line
    phase = f" in {where.phase}{' (recomputed)' if where.recomputed else ''}" if where.phase else ""
    yield from wrapped(
        f"{message.backend} ran out of memory{rank}{phase}{place}: {message.asked.text} asked for.", "  "
    )
    yield from wrapped(f"Fragmentation: {FRAGMENTATION[found.fragmentation]}.", "  ")
    for one in found.tensors[:3]:
        yield from wrapped(f"Of this size: {one.name}, {one.size_B / 1e9:.2f} GB = {one.formula}.", "  ")
    if found.missing:
        yield from wrapped(f"Not known: {found.missing}.", "  ")
    yield "What would change it, cheapest first:"
    for number, remedy in enumerate(found.remedies, 1):
        technique = f" [{remedy.technique}]" if remedy.technique else ""
        yield from wrapped(f"{number}. {remedy.change}{technique}: costs {remedy.cost}.", "     ")
