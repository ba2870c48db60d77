"""Finds the optimizations of a suite and reads what their YAMLs say: variants, settings, techniques, titles.

An optimization is `conf/suite/<suite>/<name>.yaml`, which lists techniques, or has a function of its name in
`optimizations.py` of the suite's package or the module `<name>.py` there or in a folder, or both. `baseline`
and `baseline_again` are the harness's own.

A suite's YAML and an optimization's may have `applies_to`: alternatives, each a mapping from fields of a
workload to the values that they may have: one, a list, or of a number `{at_least: n, at_most: n}`, either or
both. `gpu: true` in one makes it an alternative for hosts with a GPU.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

from harness.bounds import Bounds
from harness.config.code_fingerprint import ROOT, module_of
from harness.config.protocols import SuiteCode, function_of, optimization_file
from harness.config.techniques import KEY, checked_techniques, combination, name_of, refuse_conflicts
from harness.config.techniques import title_of as title_of_list
from harness.config.validation import (
    NUMBERS,
    ConfigError,
    Fields,
    check_fields,
    check_relations,
    check_value,
    declared_in,
    parameters_of,
    shown,
    unknown,
)
from harness.units import counted

GPU = "gpu"  # not a field of a workload: the host must have a GPU

Alternatives = tuple[Mapping[str, Container[Any]], ...]


def checked_alternatives(where: str, given: Any, fields: Mapping[str, Any]) -> Alternatives:
    """Return `applies_to` as a YAML has it, each value as a container; raises ConfigError."""
    alternatives = []
    for index, one in enumerate(given):
        at = f"{where}[{index}]"
        if not isinstance(one, Mapping) or not one:
            raise ConfigError(f"{at}={one!r}: expected fields of a workload with their values")
        alternatives.append({name: _values(f"{at}.{name}", name, one[name], fields) for name in one})
    return tuple(alternatives)


def _values(where: str, name: str, value: Any, fields: Mapping[str, Any]) -> Container[Any]:
    values = tuple(value) if isinstance(value, list) else (value,)
    if name == GPU:
        if GPU in fields:
            raise ConfigError(
                f"{where}: here it is the host's GPU, so no field may be named {GPU}; rename it"
            )
        if values != (True,):
            raise ConfigError(f"{where}={value!r}: expected true")
        return values
    if name not in fields:
        raise unknown(where, name, [*fields, GPU])
    if isinstance(value, Mapping):
        if not value or value.keys() - {"at_least", "at_most"} or fields[name].get("type") not in NUMBERS:
            raise ConfigError(
                f"{where}={value!r}: expected a value, a list, or of a number {{at_least: n, at_most: n}}"
            )
        ends = {end: check_value(f"{where}.{end}", n, {"type": "float"}) for end, n in value.items()}
        return Bounds(**ends)
    return tuple(check_value(where, one, fields[name]) for one in values)


def applies(alternatives: Alternatives, workload: Mapping[str, Any], gpu: bool) -> bool:
    """Return whether a workload meets one of the alternatives; every workload does where there is none."""
    known = {**workload, GPU: gpu}
    return not alternatives or any(
        all(known[name] in values for name, values in one.items()) for one in alternatives
    )


def left_out(cells: Sequence[tuple[bool, bool]]) -> list[str]:
    """Return what is not planned, in sentences.

    `cells`: of each, whether its variant applies to its workload here, and whether it would with a GPU.
    """
    counts = {
        "that need a GPU": sum(with_gpu and not here for here, with_gpu in cells),
        "to which the variant does not apply": sum(not with_gpu for _, with_gpu in cells),
    }
    return [f"not planned: {counted(count, 'cell')} {which}" for which, count in counts.items() if count]


SUITES = ROOT / "suites"
CONF = (Path(__file__).parents[1] / "conf").resolve()  # a link to conf/ in a checkout, a copy where installed

BASELINE = "baseline"
AGAIN = "baseline_again"
"""The baseline once more, where variants are interleaved or a suite asks for it: the noise of the run."""

BASELINES = (BASELINE, AGAIN)

AGAIN_TITLE = "Baseline again (noise)"

OWN_KEYS = ("title", "techniques")  # keys of a variant that are no settings

EXPECTED = "expected the keys of a variant, such as {title: TEXT}"


@dataclass(frozen=True, slots=True)
class Variant:
    """One column of the matrix: an optimization with its settings and techniques."""

    name: str
    module: str  # the optimization, whose module has this name, where it has one
    settings: Mapping[str, Any]
    techniques: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    title: str = ""
    applies_to: Alternatives = ()
    repeats: int | None = None  # fresh processes at most; None: as many as the run has


@cache
def package_of(suite: str) -> str:
    """Return the name of the package of a suite's code: the one that its YAML names, or the suite's own."""
    return str(read_yaml(CONF / "suite" / f"{suite}.yaml").get("package") or suite)


def code_of(suite: str, suites: Path = SUITES) -> SuiteCode:
    """Return where the code of a suite is; `suites`: the folder of all packages."""
    return SuiteCode(suites / package_of(suite), suite)


def code_below(package: str, suite: str) -> SuiteCode:
    """Return where the code of a suite is; `package`: the dotted name of the package of all packages."""
    return code_of(suite, Path(import_module(package).__path__[0]))


def workload_fields(suite: str, package: str = "suites") -> Fields:
    """Return the fields of a suite's workloads; raises ConfigError, one line that names its workload.py."""
    code = code_of(suite, Path(package))
    return declared_in(f"{code.package}.workload", code.workload)


def rows_of(suite: str, conf: Path = CONF) -> dict[str, dict[str, Any]]:
    """Return the workloads of a suite that has a file of rows, by a row's id; none of another suite.

    Raises ConfigError with the number of a line that is no row.
    """
    name = str(read_yaml(conf / f"suite/{suite}.yaml").get("rows") or "")
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines() if name else []
    rows: dict[str, dict[str, Any]] = {}
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            rows[row["id"]] = {"row": row, "source": str(row.get("page") or row.get("place"))}
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"{name}, line {number}: no row with an id: {error}") from None
    return rows


def titles_of_rows(suite: str, conf: Path = CONF) -> dict[str, str]:
    """Return how people know the workloads of `rows_of`."""
    return {name: str(one["row"].get("title") or name) for name, one in rows_of(suite, conf).items()}


def optimizations(suite: str, conf: Path = CONF) -> list[str]:
    """Return the names of a suite's optimizations, sorted: those of its YAMLs."""
    return sorted(path.stem for path in (conf / "suite" / suite).glob("*.yaml"))


def variants(
    suite: str,
    config: Mapping[str, Any],
    only: Sequence[str],
    suites: Path = SUITES,
    techniques: Sequence[Any] = (),
) -> tuple[Variant, ...]:
    """Return the requested variants, each setting checked, after the baseline, with which they are compared.

    `techniques`: a command's own list, which is one more variant; without `only` it runs with the baseline.
    Raises ConfigError.
    """
    code = code_of(suite, suites)
    every = [Variant(BASELINE, BASELINE, {}, (), config["baseline_title"])]
    if config["interleave"] or config["baseline_again"]:
        every.append(Variant(AGAIN, AGAIN, {}, (), AGAIN_TITLE))
    for name in sorted(config["optimizations"]):
        entry = config["optimizations"][name]
        file = optimization_file(code, name)
        if file is None and not entry["applies_to"]:
            entry = {**entry, "applies_to": config["techniques_apply_to"]}
        settings = partial(settings_of, code, name)
        variants_here = variants_of(f"suite.optimizations.{name}", name, entry, config["fields"], settings)
        if (function := function_of(code, name)) is not None:
            for one in variants_here:
                check_fields(f"suite.optimizations.{name}", one.settings, parameters_of(function.function))
        if file is None and not all(one.techniques for one in variants_here):
            raise ConfigError(
                f"suite.optimizations.{name}: it lists no techniques, and suites/{code.folder.name}/"
                f"{name}.py with apply(subject) is missing; expected either"
            )
        every += variants_here
    if techniques:
        listed = combination(list(techniques))
        applies_to = checked_alternatives(
            "suite.techniques_apply_to", config["techniques_apply_to"], config["fields"]
        )
        every.append(Variant(name_of(listed), KEY, {}, listed, title_of_list(listed), applies_to))
        only = (*only, every[-1].name)
    known = {name for one in every for name in (one.name, one.module)}
    for name in only:
        if name not in known:
            raise unknown(f"only=[{name}]", name, [variant.name for variant in every])
    if not only:
        return tuple(every)
    requested = {*only, BASELINE} | ({AGAIN} if config["interleave"] else set())
    return tuple(one for one in every if one.name in requested or one.module in requested)


def variants_of(
    where: str,
    name: str,
    entry: Mapping[str, Any],
    workload_fields: Fields,
    setting_fields: Callable[[], Fields],
) -> list[Variant]:
    """Return the variants that one optimization's YAML describes; raises ConfigError.

    `setting_fields`: returns what its settings may be, where the YAML gives any.
    """
    applies_to = checked_alternatives(f"{where}.applies_to", entry["applies_to"], workload_fields)
    repeats = check_value(
        f"{where}.repeats", entry["repeats"], {"type": "int", "optional": True, "at_least": 1}
    )
    variants = []
    for label, changed in (entry["variants"] or {"": {}}).items():
        variant = f"{name}.{label}" if label else name
        place = f"{where}.variants.{label}" if label else f"{where}.settings"
        if not isinstance(changed, Mapping):
            raise ConfigError(f"{place}={shown(changed)}: {EXPECTED}")
        settings = {**entry["settings"], **{k: v for k, v in changed.items() if k not in OWN_KEYS}}
        if settings:
            fields, first = setting_fields(), next(iter(settings))
            if not fields:
                raise unknown(f"{place}.{first}", first, OWN_KEYS)
            settings = check_fields(place, settings, fields)
            check_relations(place, settings, fields)
        listed = changed.get("techniques", entry["techniques"])
        at = f"{place}.techniques" if "techniques" in changed else f"{where}.techniques"
        title = title_of(name, str(label), entry["title"], changed)
        check_value(f"{place}.title", title, {"type": "str"})
        techniques = checked_techniques(at, listed)
        refuse_conflicts(at, techniques)
        variants.append(Variant(variant, name, settings, techniques, title, applies_to, repeats))
    return variants


def settings_of(code: SuiteCode, name: str) -> Fields:
    """Return what the settings of an optimization may be; raises ConfigError."""
    if (function := function_of(code, name)) is not None:
        return parameters_of(function.function)
    file = optimization_file(code, name)
    if file is None:
        return {}
    return declared_in(f"{code.package}.{module_of(file, code.folder)}", "Settings")


def title_of(name: str, label: str, title: str, changed: Mapping[str, Any]) -> Any:
    """Return the title of a variant: its own, its optimization's with the label, or its name."""
    if "title" in changed:
        return changed["title"]
    if not label:
        return title or name
    return f"{title} ({label})" if title else f"{name}.{label}"


def titles(suite: str, conf: Path = CONF) -> dict[str, str]:
    """Return the title of each variant as the YAMLs have it, without composing a config."""
    own = read_yaml(conf / "suite" / f"{suite}.yaml")
    titles = {BASELINE: str(own.get("baseline_title", "Baseline")), AGAIN: AGAIN_TITLE}
    for name, entry in ((one, entry_of(suite, one, conf)) for one in optimizations(suite, conf)):
        for label, changed in (entry.get("variants") or {"": {}}).items():
            title = title_of(name, str(label), entry.get("title", ""), changed)
            titles[f"{name}.{label}" if label else name] = str(title)
    return titles


def question_of(suite: str, conf: Path = CONF) -> str:
    """Return the question of a suite's YAML in one line, "" where it has none, without composing a config."""
    return " ".join(str(read_yaml(conf / "suite" / f"{suite}.yaml").get("question", "")).split())


def suites_with(key: str) -> list[str]:
    """Return the suites whose YAML has a key, as `takes_techniques`, `hf_defaults` or `trace_defaults`."""
    return [file.stem for file in sorted((CONF / "suite").glob("*.yaml")) if read_yaml(file).get(key)]


def workloads_of(suite: str, conf: Path = CONF) -> dict[str, dict[str, Any]]:
    """Return a suite's own workloads with the fields that its YAML gives, without composing a config."""
    own = read_yaml(conf / "suite" / f"{suite}.yaml")
    every = own.get("workloads") or rows_of(suite, conf)
    return {name: {**own.get("workload_defaults", {}), **one} for name, one in every.items()}


def entry_of(suite: str, name: str, conf: Path = CONF) -> dict[str, Any]:
    """Return an optimization's YAML; raises ConfigError, which names the line, on a variant without keys."""
    file = Path("suite", suite, f"{name}.yaml")
    entry = read_yaml(conf / file)
    for label, changed in (entry.get("variants") or {}).items():
        if not isinstance(changed, Mapping):
            node: Any = yaml.compose((conf / file).read_text(), yaml.SafeLoader)
            for key in ("variants", label):
                node = next((value for named, value in node.value if named.value == str(key)), node)
            where = f"conf/{file}:{node.start_mark.line + 1}: variants.{label}"
            raise ConfigError(f"{where}={shown(changed)}: {EXPECTED}")
    return entry


def read_yaml(path: Path) -> dict[str, Any]:
    """Return what a YAML holds; nothing where there is none."""
    if not path.is_file():
        return {}
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return dict(yaml.load(path.read_text(), loader) or {})
