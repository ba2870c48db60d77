"""What words of any command mean: KEY=VALUE, options, numbers, and the devices of conf/hardware.

Every mistake is a `ConfigError` of one line that begins with what was typed.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.config.validation import ConfigError, nearest, unknown

if TYPE_CHECKING:
    from harness.records import Record


UNITS_B = {"MB": 1e6, "MiB": 2.0**20, "GB": 1e9, "GiB": 2.0**30}
SIZE = re.compile(rf"(\d+(?:\.\d+)?)\s*({'|'.join(UNITS_B)})", re.IGNORECASE)

MOST = 10**9  # largest whole number of a command: products of two of them are exact in 64 bits
MOST_B = 1e15  # largest device, in bytes


@dataclass(frozen=True)
class CommandWords:
    """The words of a command: paths, and values by key."""

    paths: tuple[Path, ...]
    values: Mapping[str, str]
    typed: Mapping[str, str]  # by key: the words that gave its value, for error messages

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def text(self, key: str, default: str) -> str:
        """Return a value as text."""
        return self.values.get(key, default)

    def path(self, key: str) -> Path | None:
        """Return a value as a path, None where it was not given."""
        return Path(self.values[key]) if key in self.values else None

    def number(self, key: str, expected: str = "a number above 0", share: bool = False) -> float:
        """Return a value that is a positive number, or of at least 0 and below 1; raises ConfigError."""
        try:
            value = float(self.values[key])
        except ValueError:
            value = math.nan
        if not (0 <= value < 1 if share else 0 < value < math.inf):
            raise ConfigError(f"{self.typed[key]}: expected {expected}")
        return value

    def whole(self, key: str, default: int) -> int:
        """Return a value that is a whole number from 1 to `MOST`; raises ConfigError."""
        if key not in self.values:
            return default
        text = self.values[key]
        if not text.isdecimal() or int(text) < 1:
            raise ConfigError(f"{self.typed[key]}: expected a whole number of at least 1")
        if len(text) > len(str(MOST)) or int(text) > MOST:
            raise ConfigError(f"{self.typed[key]}: expected at most {MOST:,}")
        return int(text)

    def one_of(self, key: str, allowed: Collection[str], default: str) -> str:
        """Return a value of a closed list; raises ConfigError."""
        value = self.values.get(key, default)
        if key in self.values and value not in allowed:
            raise ConfigError(f"{self.typed[key]}: expected one of {', '.join(allowed)}")
        return value


def read(argv: Sequence[str], keys: Sequence[str], options: Mapping[str, str] | None = None) -> CommandWords:
    """Return the words of a command; raises ConfigError.

    `keys`: those of KEY=VALUE. `options`: by `--name`, what its value is in words; `--name VALUE` and
    `--name=VALUE` give the key `name`, with underscores. A word that is neither is a path, and so is one
    with a `=` that exists.
    """
    options = options or {}
    paths: list[Path] = []
    values: dict[str, str] = {}
    typed: dict[str, str] = {}
    left = iter(argv)
    for word in left:
        name, equals, value = word.partition("=")
        if word.startswith("-"):
            if name not in options:
                allowed = ", ".join([*options, "--help"])
                raise ConfigError(f"{name}: no such option; allowed: {allowed}")
            key, value = name.lstrip("-").replace("-", "_"), value if equals else next(left, "")
            expected, label = options[name], f"{name} {value}"
        elif not equals or os.path.exists(word):
            paths.append(Path(word))
            continue
        else:
            key, expected, label = name, "a value", word
            if key not in keys:
                raise unknown(key, key, keys)
        if key in values:
            raise ConfigError(f"{name}: given twice")
        if not value:
            raise ConfigError(f"{label.rstrip()}: expected {expected}")
        values[key], typed[key] = value, label
    return CommandWords(tuple(paths), values, typed)


def device_of(text: str) -> tuple[str, float | None]:
    """Return the name in conf/hardware of a device, or "" and the bytes of a size, as 48GB or 44.5GiB.

    Raises ConfigError.
    """
    from harness.config.run import names

    size = SIZE.fullmatch(text)
    if size is None:
        option, known = text.lower(), names("hardware")
        if not device_file(option):
            near = nearest(option, known)
            hint = f"; did you mean {near}?" if near else ""
            raise ConfigError(
                f"device={text}: expected a size such as 48GB or 44.5GiB{hint or ','} or one of "
                f"{', '.join(known)}"
            )
        return option, None
    unit = next(one for one in UNITS_B if one.lower() == size[2].lower())
    memory_B = float(size[1]) * UNITS_B[unit]
    if not 1 <= memory_B <= MOST_B:
        raise ConfigError(f"device={text}: expected a size above 0 and at most {MOST_B / 1e9:,.0f} GB")
    return "", memory_B


VARIES = re.compile(r"\d+gb|\d{3,4}w|hbm2e")
"""What the name of a variant of a device adds: its memory, its power limit, the kind of its memory."""


def device_file(option: str) -> str:
    """Return the file of conf/hardware of a device or a variant of one, as h800 or h100_96gb; "" of none."""
    from harness.config.optimizations import CONF, read_yaml
    from harness.config.run import names

    known = names("hardware")
    if option in known:
        return option
    chip, *rest = option.split("_")
    if not all(map(VARIES.fullmatch, rest)):
        return ""
    sheets = {name: read_yaml(CONF / "hardware" / f"{name}.yaml") for name in known}
    alike = [name for name, sheet in sheets.items() if chip in (sheet.get("variants") or {})]
    found = next(iter([*alike, *(name for name in known if name.split("_")[0] == chip)]), "")
    sizes_B = [1e9 * int(one.removesuffix("gb")) for one in rest if one.endswith("gb")]
    near = found and all(1 / 2 <= size_B / float(sheets[found]["memory_B"]) <= 2 for size_B in sizes_B)
    return found if near else ""


def datasheet(option: str) -> Mapping[str, Any]:
    """Return what conf/hardware has on a device, or on the one of which it is a variant, by its name."""
    from harness.config.optimizations import CONF, read_yaml

    return read_yaml(CONF / "hardware" / f"{device_file(option)}.yaml")


def peak_FLOP_per_s(words: CommandWords, key: str) -> float:
    """Return a peak as given, or the dense bf16 peak of a device in conf/hardware; raises ConfigError."""
    from harness.config.run import names

    text, known = words.values[key], names("hardware")
    if text not in known:
        return words.number(key, f"a positive number of FLOP/s, or one of {', '.join(known)}")
    rates = datasheet(text).get("matmul_FLOP_per_s", {})
    if "bf16" not in rates:
        raise ConfigError(
            f"{words.typed[key]}: its datasheet in conf/hardware has no bf16 peak; give a number"
        )
    return float(rates["bf16"])


def results_folder(path: Path) -> Path:
    """Return a folder that has records; raises ConfigError."""
    from harness.sweep.store import RECORDS

    if not path.is_dir():
        raise ConfigError(f"{path}: {'not a folder' if path.exists() else 'no such folder'}")
    if not (path / RECORDS).is_file():
        raise ConfigError(f"{path}: no results folder, for it has no {RECORDS}")
    return path


def results_folders(source: Path) -> list[Path]:
    """Return the results folders in a folder that is none itself."""
    if (source / "plan.json").exists() or not source.is_dir():
        return []
    return sorted(path.parent for path in source.glob("*/plan.json"))


def planned(folder: Path, records: Iterable[Record]) -> list[Record]:
    """Return the records of a folder's last plan, in its order; all where it has no plan.

    Raises ConfigError where the plan cannot be read.
    """
    from harness.sweep.plan import PLAN, read_plan

    by_cell = {record.cell.id: record for record in records}
    if not (folder / PLAN).is_file():
        return list(by_cell.values())
    return [by_cell[cell] for cell in read_plan(folder).cells if cell in by_cell]


def write_text(path: Path, text: str) -> None:
    """Write a file that the user asked for; raises ConfigError."""
    try:
        path.write_text(text)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None
