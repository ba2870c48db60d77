"""`config=`, `oom=` and `write=` of `harness.fit`: a framework's own file as a question, and back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.commands.fit.question import KEYS
from harness.commands.grammar import CommandWords, read
from harness.config.validation import ConfigError

if TYPE_CHECKING:
    from harness.config.own_files.oom.explain import OomExplained
    from harness.config.own_files.setup import OwnSetup
    from harness.config.own_files.techniques import FitQuestion

OWN_KEYS = ("config", "oom", "write")
MOST_KEYS = 8
"""Keys that are not modelled and are listed by name; the rest are counted."""


@dataclass(frozen=True)
class OwnQuestion:
    """A framework's file as a question of harness.fit."""

    path: Path
    setup: OwnSetup
    asked: FitQuestion
    words: tuple[str, ...]  # of the question
    write: str | None  # the format in which the answer is printed

    def lines(self, largest: int) -> Iterator[str]:
        """Yield what was read, what is not modelled, and the answer as a framework's file."""
        from harness.commands.fit.lines import wrapped

        yield ""
        for line in read_lines(self.path, self.setup):
            yield from wrapped(line, "  ")
        if self.asked.left_out:
            yield from wrapped(f"Not in the dry run: {'; '.join(self.asked.left_out)}.", "  ")
        if self.write is not None:
            yield ""
            yield from written(self.setup, self.write, largest).splitlines()


def own_question(argv: Sequence[str]) -> OwnQuestion | None:
    """Return the question of the file in `config=`; None without one. Raises ConfigError."""
    given = read(argv, (*KEYS, *OWN_KEYS))
    if "config" not in given:
        if "write" in given:
            raise ConfigError(
                "write: needs config=FILE or layout=, whose set-up it prints as a framework's file"
            )
        return None
    path = Path(given.values["config"])
    devices = given.whole("devices", 0) if "devices" in given else None
    try:
        from harness.config.own_files.techniques import fit_question

        setup = setup_of(path, given)
        asked = fit_question(setup, devices)
        model = model_path(given, setup, Path(given.text("out", "results/fit")))
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return OwnQuestion(path, setup, asked, tuple(words_of(given, asked, model)), given.values.get("write"))


def setup_of(path: Path, given: CommandWords) -> OwnSetup:
    """Return the set-up of a file, with the model of `model=` where it is given; raises ValueError."""
    from harness.config.own_files.models import model_of
    from harness.config.own_files.read import format_named, read_own_file

    if "write" in given:
        format_named(given.values["write"])
    setup = read_own_file(path)
    if "model" in given:
        found = model_of(given.values["model"])
        if found is None:
            raise ValueError(f"model={given.values['model']}: neither a config.json nor a published shape")
        setup = replace(setup, model=found.config, model_source=found.source)
    return setup


def model_path(given: CommandWords, setup: OwnSetup, out: Path) -> str:
    """Return the path of `model=`, or of the file's model or a published shape, written below `out`."""
    path = given.values.get("model", "")
    return path if path and Path(path).exists() else model_file(setup, out)


def model_file(setup: OwnSetup, out: Path) -> str:
    """Return the path of the model's config.json, which is written below `out`; raises ValueError."""
    if setup.model is None:
        named = (
            f"{setup.model_name!r} has no published shape here" if setup.model_name else "it names no model"
        )
        raise ValueError(
            f"model: missing; {setup.format}: {named}; give model=PATH, a Hugging Face config.json"
        )
    if Path(setup.model_source).exists():
        return setup.model_source
    from harness.records import digest

    name = setup.model_name.replace("/", "_") or f"model_{digest(dict(setup.model))[:8]}"
    file = out / "own_files" / f"{name}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(dict(setup.model), indent=2) + "\n")
    return str(file)


def words_of(given: CommandWords, asked: FitQuestion, model: str) -> Iterator[str]:
    """Yield the words of the question; what the command gives replaces what the file says."""
    own = {
        "model": model,
        "devices": str(asked.devices),
        "seq_len": str(asked.seq_len) if asked.seq_len else None,
        "micro_batch_size": str(asked.micro_batch_size),
        "optimizer": asked.optimizer,
        "techniques": in_hydras_grammar([named(one) for one in asked.techniques]),
    }
    values = {
        **own,
        **{key: text for key, text in given.values.items() if key not in OWN_KEYS},
        "model": model,
    }
    yield from (f"{key}={text}" for key, text in values.items() if text is not None)


def named(technique: Mapping[str, Mapping[str, Any]]) -> Any:
    """Return a technique as its name alone where it has no settings."""
    ((name, settings),) = technique.items()
    return {name: dict(settings)} if settings else name


def in_hydras_grammar(value: Any) -> str:
    """Return a value as Hydra's command line reads it."""
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{in_hydras_grammar(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(in_hydras_grammar(one) for one in value) + "]"
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)


def read_lines(path: Path, setup: OwnSetup) -> Iterator[str]:
    """Yield what was read of a file, and each key that is not modelled."""
    model = f"{setup.model_name}, {setup.model_source}" if setup.model_name else setup.model_source
    counts = f"{len(setup.understood)} keys understood, {len(setup.defaults)} defaults of {setup.framework}"
    harmless = f"{len(setup.irrelevant)} keys that change neither memory nor speed"
    yield f"Read {path.name} as {setup.format}: {counts}, {harmless}. Model: {model}."
    unclear = [f"{one.key}={one.value} ({one.why})" for one in setup.not_understood[:MOST_KEYS]]
    more = len(setup.not_understood) - len(unclear)
    if unclear:
        yield f"Not modelled: {'; '.join(unclear)}{f'; and {more} more' if more else ''}."


def written(setup: OwnSetup, format_: str, largest: int) -> str:
    """Return a set-up at the largest micro-batch as another framework's file; raises ConfigError."""
    from harness.config.own_files.read import write_own

    try:
        return write_own(replace(setup, micro_batch_size=max(1, largest)), format_)
    except ValueError as error:
        raise ConfigError(f"write={format_}: {error}") from error


def oom_answer(argv: Sequence[str]) -> list[str] | None:
    """Return the lines of `oom=FILE`; None without it. Raises ConfigError."""
    given = read(argv, (*KEYS, *OWN_KEYS))
    if "oom" not in given:
        return None
    from harness.commands.model_shape import shape_of
    from harness.config.own_files.oom.explain import read_oom

    path = Path(given.values["oom"])
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
        setup = setup_of(Path(given.values["config"]), given) if "config" in given else None
        if setup is not None and "devices" in given:
            setup = replace(setup, devices=given.whole("devices", 1))
        return list(oom_lines(read_oom(text, setup, shape_of)))
    except OSError as error:
        raise ConfigError(f"oom={path}: {error.strerror or error}") from error
    except ValueError as error:
        raise ConfigError(f"oom={path}: {error}") from error


def oom_lines(found: OomExplained) -> Iterator[str]:
    """Yield what an out-of-memory message says, in sentences."""
    from harness.commands.fit.lines import wrapped

    message, where = found.message, found.where
    rank = "" if message.rank is None else f" on rank {message.rank}"
    line = f" ({where.line})" if where.line else ""
    place = f", at {where.place}{line}" if where.place else line
    phase = f" in {where.phase}{' (recomputed)' if where.recomputed else ''}" if where.phase else ""
    yield from wrapped(
        f"{message.backend} ran out of memory{rank}{phase}{place}: {message.asked.text} asked for.", "  "
    )
    held = {
        "yes": "torch holds enough unused memory, in pieces",
        "partly": "torch's unused memory and the free memory together would be enough",
        "no": "torch's unused memory would not be enough",
        "unknown": "the message does not say what torch holds unused",
    }
    yield from wrapped(f"Fragmentation: {held[found.fragmentation]}.", "  ")
    for one in found.tensors[:3]:
        yield from wrapped(f"Of this size: {one.name}, {one.size_B / 1e9:.2f} GB = {one.formula}.", "  ")
    if found.missing:
        yield from wrapped(f"Not known: {found.missing}.", "  ")
    yield "What would change it, cheapest first:"
    for number, remedy in enumerate(found.remedies, 1):
        technique = f" [{remedy.technique}]" if remedy.technique else ""
        yield from wrapped(f"{number}. {remedy.change}{technique}: costs {remedy.cost}.", "     ")
