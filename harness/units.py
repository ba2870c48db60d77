"""Convert base units into what people read: the units of records and reports."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

ORIGIN_MARKS = {"measured": "ᵐ", "emulated": "ᵉ", "simulated": "ˢ", "calculated": "ᶜ", "published": "ᵖ"}
"""Printed right after every figure."""

ORIGINS_IN_WORDS = {mark: origin for origin, mark in ORIGIN_MARKS.items()}

LEGEND = (
    "ᵐ measured on this hardware · ᵉ emulated · ˢ simulated: fake tensors, or a model stepped through time · "
    "ᶜ calculated by a formula"
)

PUBLISHED = "ᵖ published by others"  # part of the legend where a report has such a value; most have none


def legend(origins: Iterable[str]) -> str:
    """Return the legend of origin marks, in one line; `origins`: those of a report's values."""
    return f"{LEGEND} · {PUBLISHED}" if "published" in set(origins) else LEGEND


_SCALES = {
    "B": {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "GiB": 2.0**30},
    "s": {"µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0},
    "token/s": {"token/s": 1.0, "ktoken/s": 1e3},
    "sample/s": {"sample/s": 1.0, "ksample/s": 1e3},
    "FLOP/s": {"GFLOP/s": 1e9, "TFLOP/s": 1e12},
    "Hz": {"Hz": 1.0, "MHz": 1e6, "GHz": 1e9},
    "B/s": {"MB/s": 1e6, "GB/s": 1e9, "Gbit/s": 1.25e8},
    "USD": {"$": 1.0, "k$": 1e3, "M$": 1e6},
    "USD/h": {"$/h": 1.0},
    "USD/token": {"$/Mtoken": 1e-6},
    "USD/sample": {"$/Msample": 1e-6},
    "W": {"W": 1.0, "kW": 1e3},
    "°C": {"°C": 1.0},
    "1": {"1": 1.0, "%": 1e-2, "x": 1.0, "GFLOP": 1e9},
}


_FROM = {"TB": 10, "GiB": math.inf, "Gbit/s": math.inf}
"""Smallest value at which a unit is chosen. GB reach up to 10 TB; GiB and Gbit/s are shown on request."""


_WITHIN_A_VALUE = re.compile(r"(?<=\d) (?=[%(…]|[kMGT]?i?B\b|m?s\b)|(?<=…) | (?=[ᵐᵉˢᶜᵖ])")


def choices(unit: str) -> tuple[str, ...]:
    """Return the display units for values of base unit `unit`."""
    return tuple(_SCALES[unit])


LARGE = 1e15  # numbers above it are written as powers of ten

_SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def power_of_ten(exponent: int) -> str:
    """Return `10²⁸`."""
    return f"10{str(exponent).translate(_SUPERSCRIPTS)}"


def number(value: float, digits: int = 3) -> str:
    """Return `value` with `digits` significant digits and thousands separators; above 10¹⁵ `2.1 × 10²⁸`."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    if abs(value) > LARGE:
        mantissa, exponent = f"{value:.{digits - 2}e}".split("e")
        return f"{mantissa}\N{NO-BREAK SPACE}×\N{NO-BREAK SPACE}{power_of_ten(int(exponent))}"
    places = digits - 1 - math.floor(math.log10(abs(value)))
    rounded = round(value, places)
    places = digits - 1 - math.floor(math.log10(abs(rounded)))
    text = f"{rounded:,.{max(places, 0)}f}"
    whole = float(value).is_integer()
    return text.rstrip("0").rstrip(".") if "." in text and whole else text


def best_unit(value: float, unit: str) -> str:
    """Return the display unit in which `value` reads best."""
    if unit == "1":
        return "1"
    scales = _SCALES[unit]
    fitting = [name for name, scale in scales.items() if abs(value) >= scale * _FROM.get(name, 1)]
    return max(fitting, key=lambda name: scales[name]) if fitting else min(scales, key=lambda n: scales[n])


def in_unit(value: float, unit: str, shown: str) -> float:
    """Return `value` of base unit `unit` in the display unit `shown`; raises ValueError if there is none."""
    if shown not in _SCALES.get(unit, {}):
        raise ValueError(
            f"{unit!r} cannot be shown in {shown!r}; allowed: {', '.join(_SCALES.get(unit, {}))}"
        )
    return value / _SCALES[unit][shown]


def without_unit(value: float, unit: str, shown: str, signed: bool = False) -> str:
    """Return the value without its unit, which is in the heading; counts in full."""
    scaled = in_unit(value, unit, shown)
    if shown == "1" and float(scaled).is_integer() and abs(scaled) <= LARGE:
        text = f"{scaled:,.0f}"
    elif shown == "%" and abs(scaled) < 10:
        text = number(scaled, 1 if abs(scaled) < 1e-3 else 2)
    else:
        text = number(scaled)
    if signed and scaled > 0:
        text = f"+{text}"
    return text.replace("-", "−")


def counted(count: int, one: str, more: str = "") -> str:
    """Return `1 cell` or `2 cells`; `more` is the word for several where it is not `one` with an s."""
    return f"{count} {one if count == 1 else more or one + 's'}"


def times(value: float) -> str:
    """Return a ratio above zero with three significant digits, `1.41×`; near one to the thousandth.

    Above 10¹⁵ it is a count, such as FLOP of a run, and has no `×` behind it.
    """
    if value > LARGE:
        return number(value)
    if 0.9 < value < 1.1:
        return f"{value:.3f}×"
    return f"{value:,.{max(0, 2 - math.floor(math.log10(value)))}f}×"


def billions(value: float) -> str:
    """Return a count of parameters as `11.3 billion` or `1.04 trillion`."""
    return f"{value / 1e12:,.3g} trillion" if value >= 1e12 else f"{value / 1e9:,.3g} billion"


def human(value: float, unit: str, shown: str | None = None, signed: bool = False) -> str:
    """Return the value with its unit: `112 GB`, `35`, `+1.2 %`; `shown` None: the unit that reads best."""
    shown = shown or best_unit(value, unit)
    text = without_unit(value, unit, shown, signed)
    if shown == "x":
        return times(value)
    return text if shown == "1" else f"{text} {shown}"


def marked(text: str, origin: str) -> str:
    """Return `text` with the mark of its origin."""
    return f"{text} {ORIGIN_MARKS.get(origin, '?')}"


def kept_together(text: str) -> str:
    """Return `text` with no-break spaces between a value and its unit, its interval and its mark."""
    return _WITHIN_A_VALUE.sub("\N{NO-BREAK SPACE}", text)
