"""Words of a command to a `Command`: Hydra's flags, `list`, and KEY=VALUE words, which config reads."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from harness.config.validation import ConfigError, key_and_value, nearest

START = """\
python -m harness suite=memory selection=quick
                            how much memory do training steps take? 3 minutes
python -m harness.fit model=config.json devices=4
                            does my model fit, and at which batch?
python -m harness list      suites, hardware; list suite=NAME: its workloads
python -m harness --help    everything else
"""
"""What a command without words prints."""

USAGE = """\
python -m harness suite=NAME [KEY=VALUE]  run a suite, judge its claims, report
python -m harness from_results=FOLDER     judge and report again; of several:
                                          from_results=[A,B] out=FOLDER
python -m harness preset=gpu              on a GPU: what settles most claims in
                                          budget_min=60 minutes
python -m harness suite=all budget_min=60 the paper's tables, on any machine
python -m harness list [WHAT]             suites, workloads, variants, ...;
                                          suite=NAME: those of one suite
python -m harness.fit model=PATH          does a step of your model fit?
python -m harness.compare A B             what changed between two results?
python -m harness.cost FOLDER [rate=2.5]  what do tokens cost at these results?
python -m harness.profile TRACE           where does the time of a step go?

what to run
  suite=NAME             a suite, as suite=memory, or all of them: suite=all
  only=[a,b]             these optimizations, or single variants, as
                         activation_checkpointing.full
  techniques=[a,b.value] the baseline and one variant with these techniques, as
                         [fsdp2,mixed_precision,attention]
  workloads=[a,b]        these workloads; list suite=NAME names them
  selection=quick        the few that take minutes; it says what it leaves out
  repeats=N, seed=0      fresh processes per cell, and the seed of the first
  show=all               print every table at the end
  plan=true              as plan suite=NAME: how many cells and how long; run
                         nothing

how to run it
  out=FOLDER             of records and report (results/<suite>); finished cells
                         are not run again, but those killed from outside
  retry=[crashed]        those that ended so, too: [crashed,timed_out,...]
  limits.timeout_s=600   a cell that takes longer ends as timed_out
  limits.memory_B=null   one that takes more private memory: out_of_memory
  executor=NAME          local, slurm or ray; torchrun by itself under torchrun
                         or srun
  executor.workers=N     processes at once, of suites whose cells are not timed
  hardware=NAME          the device that tables are about

your own workload
  suite.workloads.NAME.FIELD=VALUE      change a field
  +suite.workloads.NAME={FIELD: VALUE}  add a workload
  ~suite.workloads.NAME                 leave one out
  suite.workload_from=PATH              a Hugging Face config.json; other
                                        fields: suite.hf_defaults
  suite.model=PACKAGE.MODULE:FUNCTION   your own model code:
                                        docs/suites/memory.md
  suite.trace=PATH                      a torch.profiler trace, or a folder of
                                        ranks: docs/commands/traces.md

exit status
  0 done, also where cells ran out of memory or time or are unavailable
  2 a mistake in the command; 4 a cell crashed or computed wrongly; 1 another
  failure

flags
  --help, --version
  --cfg job [--resolve] [--package KEY]  print the configuration as YAML
  --info [KIND]                          print the files that it is made of
  --shell-completion install=bash        completion, by
                     eval "$(python -m harness -sc install=bash)"
"""

SHORT = {
    "-h": "--help",
    "-c": "--cfg",
    "-i": "--info",
    "-p": "--package",
    "-r": "--run",
    "-m": "--multirun",
    "-sc": "--shell-completion",
    "-cp": "--config-path",
    "-cn": "--config-name",
    "-cd": "--config-dir",
}

SHOWN = ("--help", "--version", "--cfg", "--info", "--shell-completion")
"""Flags that print something in place of a run."""

INFO = ("defaults-tree", "defaults", "searchpath", "config", "plugins", "all")

VALUES: dict[str, tuple[str, ...]] = {
    "--cfg": ("job",),
    "--info": INFO,
    "--package": (),
    "--shell-completion": ("install=bash", "install=zsh", "query=bash", "uninstall=bash", "uninstall=zsh"),
}
"""Flags with a value, and which values are allowed; none named: any."""

REFUSED = {
    "--multirun": "the harness runs the full matrix itself: use workloads=[a,b] only=[x,y] repeats=N",
    "--config-path": "conf/ is where the configuration is: change it by KEY=VALUE, or edit its files",
    "--config-name": "conf/config.yaml is the configuration: choose within it by suite=NAME and KEY=VALUE",
    "--config-dir": "conf/ is where the configuration is: a new file below conf/suite/ is found by its name",
    "--hydra-help": "Hydra composes the configuration and runs nothing: see --help",
    "--experimental-rerun": "a finished cell is not run again: give the same command, or another out=FOLDER",
}


class Command(NamedTuple):
    """What was typed: words KEY=VALUE, and at most one thing to show in place of a run."""

    words: tuple[str, ...]
    shown: str = ""  # one of `SHOWN`, or "list"
    value: str = ""  # of what is shown
    package: str = ""
    resolve: bool = False


def read(argv: Sequence[str]) -> Command:
    """Return what `argv` asks for; raises ConfigError."""
    words: list[str] = []
    flags: dict[str, str] = {}
    left = deque(argv)
    while left:
        word = left.popleft()
        if word.startswith("-"):
            name, value = _flag(word, left)
            flags[name] = value
        else:
            words.append(word)
    if "--help" in flags:
        return Command((), "--help")
    keys = [key for key, value in (key_and_value(word.lstrip("+")) for word in words) if value is not None]
    for key in keys:
        if keys.count(key) > 1:
            raise ConfigError(f"{key}: given twice")
    shown = [name for name in flags if name in SHOWN]
    if words and words[0] == "list":
        shown.append("list")
        words = words[1:]
    elif words and words[0] == "plan":
        words = [*words[1:], "plan=true"]
    if len(shown) > 1:
        raise ConfigError(f"{shown[0]} and {shown[1]}: one at a time")
    for name, example in (("--resolve", "--resolve"), ("--package", "--package KEY")):
        if name in flags and "--cfg" not in flags:
            raise ConfigError(f"{name}: only with --cfg: use --cfg job {example}")
    name = shown[0] if shown else ""
    return Command(tuple(words), name, flags.get(name, ""), flags.get("--package", ""), "--resolve" in flags)


def _flag(word: str, left: deque[str]) -> tuple[str, str]:
    """Return a flag's long name and its value, which may be the next of the words that are left."""
    typed, given = key_and_value(word)
    name, value = SHORT.get(typed, typed), given or ""
    if name in REFUSED:
        raise ConfigError(f"{word}: {REFUSED[name]}")
    known = [*SHOWN, "--resolve", "--package", "--run"]
    if name not in known:
        near = nearest(name, known)
        hint = f"did you mean {near}? " if near else ""
        raise ConfigError(f"{word}: no such option; {hint}allowed: {', '.join(known)}, and KEY=VALUE")
    if name not in VALUES:
        if given is not None:
            raise ConfigError(f"{word}: {name} takes no value")
        return name, ""
    allowed = VALUES[name]
    if name == "--info" and given is None and (not left or "=" in left[0] or left[0].startswith("-")):
        return name, INFO[0]
    value = value if given is not None or not left else left.popleft()
    if not value or (allowed and value not in allowed):
        raise ConfigError(f"{name} {value}".rstrip() + f": expected {' or '.join(allowed) or 'a key'}")
    return name, value
