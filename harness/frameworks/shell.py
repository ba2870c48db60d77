"""The options of a command line or of a shell script, as far as its text alone decides them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from harness.frameworks.shell_branches import with_branches
from harness.frameworks.shell_variables import ASSIGNED, filled, with_assigned

PRINTED = re.compile(r"""\b(?:echo|printf)\s+(?:-\w+\s+)?(?:'[^']*'|"[^"]*")""")
"""What a shell prints: no options, though they look so."""

QUOTED_ARRAY = re.compile(r'"(\$\{\w+\[[@*]\]\})"')
"""All of an array in quotes, which are its words."""

COMMENT = re.compile(r"^[^\S\n]*#.*", re.MULTILINE)
"""A line that is a comment: its last backslash continues nothing, and it ends a command before it."""

LAUNCHERS = (
    *("torchrun", "deepspeed", "accelerate", "accelerate.commands.launch"),
    *("torch.distributed.run", "torch.distributed.launch"),
)
"""Programs whose options, before the script's name, say how many processes there are."""

ARRAY = re.compile(r"(?:\w+\+?=)?\(\s*-|\w+\+?=\(|[()]+\Z")
"""A word that begins an array or a subshell of options, or has nothing but its brackets."""

REDIRECTION = re.compile(r"(?:\d|&)?[<>]|[|&]\Z")
"""What follows a command's own words."""

UNSET = re.compile(r"\$\{?\w+\}?\Z")
"""A variable that the script does not set, as a word of its own."""

DOTTED = re.compile(r"\+{0,2}[A-Za-z]\w*(\.\w+)+\Z")
"""A key of Hydra's command line, as in model.hidden_size=4096."""

STARTS = re.compile(
    r"""(?:^|[\s"'(])(?:--[A-Za-z]|\+{0,2}[A-Za-z]\w*(?:\.\w+)+=|(?:llamafactory-cli|lmf)\s+train\s"""
    r"""|(?:swift|megatron) (?:sft|pt|rlhf)\s)"""
)
"""The begin of an option or of Hydra's key, or a command that may be without."""

SERVERS = re.compile(r"\b(?:trl|vllm)\s+(?:vllm-)?serve\b")
"""Commands that generate and do not train."""

SUBMITS = re.compile(r"\s*sbatch\s")
"""A command that submits another script, whose options are Slurm's."""

UNDOTTED = (
    *("mixed_precision", "peft"),
    *("use_remove_padding", "ulysses_sequence_parallel_size", "engine", "model_engine"),
)
"""Such keys of Megatron Bridge, NeMo and verl without a section."""

TRL = re.compile(
    r"(?:\btrl |(?:^|[\s/])(?:run_)?)(sft|dpo|kto|bco|cpo|orpo|tpo|reward|grpo|gspo|rloo|online_dpo|nash_md"
    r"|xpo|ppo|prm|gkd|gold|minillm|distillation|sdft|sdpo|ssd|mpo)(?:_(?:modeling|vlm|gemma3|llm|gpt_oss|tldr))*"
    r"(?:\.py)?(?=\s|$)"
)
"""TRL's commands and scripts, by trainer."""

KEY = re.compile(r"[A-Za-z]\w*=")
"""A key without a section, after a file of which it replaces a value."""

MEGATRONS = re.compile(r"(?:(?:pretrain_|train_rl)\w*|\w*(?:text_generation|inference)\w*)\.py\Z")
"""Megatron-LM's scripts, which are named by what they train, or of what trains nothing."""

ALLOCATOR = re.compile(r"PYTORCH_(?:CUDA_)?ALLOC_CONF=(\S*)")
EXPANDABLE = re.compile(r"(?:tune|axolotl(?:\.cli\.train)?)\Z")
"""Programs that switch expandable segments on where the environment does not set the allocator."""

NESTED = re.compile(r"\.py\s.*--[A-Za-z]", re.DOTALL)
"""A word that is a command of its own, as of `sh -c`."""

PROGRAM = re.compile(
    r"openrlhf\.cli\.train_\w+"
    r"|(?:verl|recipe)\.[\w.]*(?:_main|main_(?!eval|gen)\w+|sft_trainer\w*)"
    r"|(?:swift|megatron) (?:sft|pt|rlhf)"
    r"|\S*\b(?:swift/cli/(?:_megatron/)?(?:sft|pt|rlhf)|fsdp_sft_trainer|main_ppo_split)\.py"
)
"""Trainers of OpenRLHF, verl and ms-swift: they decide what an option means, and are read alone."""

ENVIRONMENT = re.compile(
    r"\b(NPROC_PER_NODE|NNODES|(?:CUDA|ASCEND_RT)_VISIBLE_DEVICES|MAX_(?:POSI|NEGA)TIVE_SAMPLES)=(\S+)"
)
"""What ms-swift's launcher and its data collators read from the environment."""

OPTION = re.compile(r"--?[A-Za-z][\w.-]*\Z")


def command_line(text: str) -> dict[str, Any]:
    """Return the options of a command line or of a shell script; an option without a value is True.

    Variables that the script assigns are filled in. Of several commands with options, all are read, but of
    the trainers in `PROGRAM` and of runs of one script the first alone. A launcher's own options are named
    `launcher.…`.
    """
    text = QUOTED_ARRAY.sub(r"\1", re.sub(r"\\[^\S\n]*\n", " ", COMMENT.sub("", text)))
    text = PRINTED.sub("", with_branches(text))
    variables: dict[str, str] = {}
    with_assigned(text, variables)
    flat: dict[str, Any] = {}
    whole = filled(text, variables)
    commands = [
        (words, *_program(words)) for words in _commands(whole) if not SERVERS.search(" ".join(words))
    ]
    trainers, of_trl = [one for one in commands if one[2]], [one for one in commands if _of_trl(one[0])]
    if any(words != trainers[0][0] for words, *_ in trainers):
        flat["launcher.others"] = len(trainers) - 1
    elif not trainers and not of_trl:
        runs = {_script(words): words for words, *_ in reversed(commands)}  # the first of each script
        first = [one for one in commands if not _script(one[0]) or one[0] == runs[_script(one[0])]]
        if others := len(commands) - len(first):
            flat["launcher.others"] = others
        commands = first
    for words, at, program in trainers[:1] or of_trl[-1:] or commands:
        if program:
            flat["launcher.program"] = program
        elif of_trl:
            flat["trl.trainer"] = _of_trl(words)
        if not program:
            words = [part for word in words for part in (word.split() if NESTED.search(word) else [word])]
        launcher = bool(program) or any(Path(word).name in LAUNCHERS for word in words)
        script = at if program else next((at for at, word in enumerate(words) if word.endswith(".py")), -1)
        name = Path(words[script]).name if script >= 0 else ""
        allocators = ALLOCATOR.findall(text)
        expandable = any("expandable_segments:True" in one for one in allocators)
        usual = bool(allocators) and any(EXPANDABLE.match(word) for word in words)
        if usual or (expandable and (program or MEGATRONS.match(name))):
            flat["launcher.expandable_segments"] = expandable
        if MEGATRONS.match(name) and name != "pretrain_gpt.py":
            flat["launcher.script"] = name
        for before, word in pairwise(words[at:] if program else ()):
            if before in ("--config", words[at]) and word.endswith((".yaml", ".yml")):
                file = word.removeprefix("$command_output/")
                raise ValueError(f"{program} reads its options from {file}: give that file")
        if "swift" in program or "megatron " in program:
            flat |= {f"launcher.{name}": value for name, value in ENVIRONMENT.findall(whole)}
        if launcher and script > 0:
            flat |= {f"launcher.{name}": value for name, value in _options(words[:script])}
        if words[0] == "tune" and "--config" in words:  # torchtune's, before which its recipe stands
            script = words.index("--config")
            flat |= {f"launcher.{name}": value for name, value in _options(words[: script - 1])}
            flat["launcher.recipe"] = words[script - 1]
        if words[0] == "nemo":
            flat |= {"launcher.nemo": words[2]}  # pretrain or finetune
        given = words[script + 1 :] if script >= 0 else words
        flat |= _named_file(given)
        flat |= dict(_options(given))
    if not flat:
        raise ValueError("no option such as --micro-batch-size 1 is in it")
    return flat


def _commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each command; assignments are no commands, unless nothing else has options."""
    without = ASSIGNED.sub("", text)
    for part, submitted in ((without, False), (text, False), (without, True)):
        lines = [line for line in re.split(r"[\n;]|&&|\|\|", part) if STARTS.search(line)]
        found = [line for line in lines if submitted or ".py" in line or not SUBMITS.match(line)]
        if found:
            for line in found:
                if part is text:
                    line = line.replace('"', " ").replace("'", " ")
                words = _words(line)
                yield [part for word in words for part in _without_array(word)]
            return


def named_yaml(command: str) -> dict[str, Any]:
    """Return the YAML that a command's script reads, and the values that the command replaces in it."""
    words = _words(command)
    words = words[next((at for at, word in enumerate(words) if word.endswith(".py")), -1) + 1 :]
    return _named_file(words) | dict(_options(words))


def _named_file(words: list[str]) -> dict[str, Any]:
    """Return the YAML that a command names without an option, and values after it, which replace its own."""
    at = next((at for at, one in enumerate(words) if one.endswith((".yaml", ".yml")) and "=" not in one), -1)
    if at < 0 or (at and words[at - 1].startswith("-")):
        return {}
    pairs = (one.split("=", 1) for one in words[at:] if KEY.match(one))
    return {"config": words[at], **{key: _value(text) for key, text in pairs}}


def _of_trl(words: list[str]) -> str:
    """Return the trainer that a command of TRL starts, "" where it is another's."""
    at = next((at for at, word in enumerate(words) if word.endswith(".py") or word == "trl"), len(words))
    found = TRL.search(" ".join(words[at : at + (2 if words[at : at + 1] == ["trl"] else 1)]))
    return found[1] if found else ""


def _script(words: list[str]) -> str:
    """Return the Python script that a command runs, "" where it runs none."""
    return next((word for word in words if word.endswith(".py")), "")


def _without_array(word: str) -> list[str]:
    """Return a word without the brackets of an array or a subshell; those of a value such as ([0]*3) stay."""
    whole = word.count("(") == word.count(")") and not ARRAY.match(word)
    return [word] if whole else re.sub(r"[()]", " ", word).split()


def _words(line: str) -> list[str]:
    """Return the words of a line before its comment, which begins a word; a#1 is a word."""
    for comments in (False, True):
        with suppress(ValueError):  # an apostrophe of a comment
            words = shlex.split(line, comments=comments)
            return words[: next((at for at, word in enumerate(words) if word.startswith("#")), len(words))]
    return line.replace('"', " ").replace("'", " ").split()


def _program(words: list[str]) -> tuple[int, str]:
    """Return where a command's trainer stands, and its name; -1 and "" where it has none that is known."""
    for at, word in enumerate(words):
        for name in (word, " ".join(words[max(at - 1, 0) : at + 1])):
            if PROGRAM.fullmatch(name):
                return at, name
    return -1, ""


def _begins(word: str) -> bool:
    """Return whether a word is an option, or Hydra's key with a value, and so ends the values before it."""
    name, equals, _ = word.partition("=")
    return bool(OPTION.match(name) or (equals and (DOTTED.match(name) or name in UNDOTTED)))


def _options(words: list[str]) -> Iterator[tuple[str, Any]]:
    words = [word for word in words if word.strip() and not re.fullmatch(r"\$\{\w+\[[@*]\]\}", word.strip())]
    words = [part for word in words for part in (word.split() if word.strip().startswith("--") else [word])]
    at = 0
    while at < len(words):
        name, equals, value = words[at].partition("=")
        at += 1
        if equals and (DOTTED.match(name) or name in UNDOTTED):
            yield name.lstrip("+"), _value(value)
            continue
        if not OPTION.match(name):
            continue
        values = [value] if equals else []
        while not equals and at < len(words) and not _begins(words[at]) and not REDIRECTION.match(words[at]):
            if not (values and UNSET.match(words[at])):  # more options, which only the script's caller knows
                values.append(words[at])
            at += 1
        yield name.lstrip("-"), True if not values else values[0] if len(values) == 1 else values


def _value(text: str) -> Any:
    """Return a value as Hydra's command line has it: YAML, or text where it is none."""
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text
