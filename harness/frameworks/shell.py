"""The options of a command line or of a shell script, as far as its text alone decides them."""

from __future__ import annotations

import ast
import operator
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

LARGEST_FILE_B = 10_000_000
"""No configuration comes near this size."""

ASSIGNED = re.compile(
    r"""^\s*(?:export\s+)?(\w+\+?)=(\$?\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)|"[^"]*"|'[^']*'|"""
    r"""(?:\$\{[^}\n]*\}|[^\s#;])*)""",
    re.MULTILINE,
)
"""A shell's assignment of a word, a quoted text, an array or a command's output."""

POSITIONAL = re.compile(r"\$(?:\d|\{\d+\}|@|\*)\Z")
"""What the script's own caller gives; a value that the script set before is its default."""

CASE = re.compile(r"\bcase\b.*?\besac\b", re.DOTALL)
PATTERN = re.compile(r"^\s*(?:-[\w-]+[^\S\n]*\|[^\S\n]*)*--?\w[\w-]*[^\S\n]*\)", re.MULTILINE)
"""A shell's `case`, and its patterns, which look like options."""

PRINTED = re.compile(r"""\becho\s+(?:-\w+\s+)?(?:'[^']*'|"[^"]*")""")
"""What a shell prints: no options, though they look so."""

USED = re.compile(r"\$\{(\w+)(?:\[@\]|\[\*\])?(?::-([^}]*))?\}|\$(\w+)")
"""A use of a shell's variable, with the value it has when it is not set."""

LAUNCHERS = (
    *("torchrun", "deepspeed", "accelerate", "accelerate.commands.launch"),
    *("torch.distributed.run", "torch.distributed.launch"),
)
"""Programs whose options, before the script's name, say how many processes there are."""

ARITHMETIC = re.compile(r"\$\(\(([^()]*(?:\([^()]*\)[^()]*)*)\)\)|\$\(expr ([^()]*)\)|`expr ([^`]*)`")
"""A shell's sums and products of whole numbers."""

OUTPUT = re.compile(r"\$\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)|`[^`]*`")
"""A command whose output only a run of the script knows."""

ARRAY = re.compile(r"(?:\w+\+?=)?\(\s*-|\w+\+?=\(|[()]+\Z")
"""A word that begins an array or a subshell of options, or has nothing but its brackets."""

REDIRECTION = re.compile(r"(?:\d|&)?[<>]|[|&]\Z")
"""What follows a command's own words."""

UNSET = re.compile(r"\$\{?\w+\}?\Z")
"""A variable that the script does not set, as a word of its own."""

QUOTES = "\"'"

SUM = re.compile(r"[\d\s+*/%()-]+")
"""What of them is calculated here."""

DOTTED = re.compile(r"\+{0,2}[A-Za-z]\w*(\.\w+)+\Z")
"""A key of Hydra's command line, as in model.hidden_size=4096."""

STARTS = re.compile(
    r"""(?:^|[\s"'(])(?:--[A-Za-z]|\+{0,2}[A-Za-z]\w*(?:\.\w+)+=|(?:llamafactory-cli|lmf)\s+train\s)"""
)
"""The begin of an option or of Hydra's key, or a command that may be without."""

SERVERS = re.compile(r"\b(?:trl|vllm)\s+(?:vllm-)?serve\b")
"""Commands that generate and do not train."""

UNDOTTED = ("mixed_precision", "peft")
"""Such keys of Megatron Bridge and NeMo without a section."""

TRL = re.compile(
    r"(?:\btrl |(?:^|[\s/])(?:run_)?)(sft|dpo|kto|bco|cpo|orpo|tpo|reward|grpo|gspo|rloo|online_dpo|nash_md"
    r"|xpo|ppo|prm|gkd|gold|minillm|distillation|sdft|sdpo|ssd|mpo)(?:_(?:modeling|vlm|gemma3|llm|gpt_oss|tldr))*"
    r"(?:\.py)?(?=\s|$)"
)
"""TRL's commands and scripts, by trainer."""

KEY = re.compile(r"[A-Za-z]\w*=")
"""A key without a section, after a file of which it replaces a value."""

MEGATRONS = re.compile(r"(?:pretrain_|train_rl)\w*\.py\Z")
"""Megatron-LM's scripts, which are named by what they train."""

EXPANDABLE = re.compile(r"PYTORCH_(?:CUDA_)?ALLOC_CONF=[\"']?\S*expandable_segments:True")
NESTED = re.compile(r"\.py\s.*--[A-Za-z]", re.DOTALL)
"""A word that is a command of its own, as of `sh -c`."""

OPTION = re.compile(r"--?[A-Za-z][\w.-]*\Z")


def command_line(text: str) -> dict[str, Any]:
    """Return the options of a command line or of a shell script; an option without a value is True.

    Variables that the script assigns are filled in; of several commands with options, all are read, and
    torchrun's own are named `torchrun.…`.
    """
    text = re.sub(r"\\\s*\n", " ", text)
    text = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    text = PRINTED.sub("", CASE.sub(lambda found: PATTERN.sub("", found.group()), text))
    variables: dict[str, str] = {}
    for name, value in _assigned(text):
        added = name.endswith("+")
        name = name.rstrip("+")
        if POSITIONAL.match(value) and name in variables:
            continue
        own = re.compile(r"\$\{" + name + r"(?:\[[@*]\])?(?::-([^}]*))?\}|\$" + name + r"\b")
        value = own.sub(lambda found: variables.get(name, (found.group(1) or "").strip(QUOTES)), value)  # noqa: B023
        variables[name] = f"{variables.get(name, '')} {value}" if added else value
    flat: dict[str, Any] = {}
    commands = [words for words in _commands(_filled(text, variables)) if not SERVERS.search(" ".join(words))]
    of_trl = [words for words in commands if _of_trl(words)]
    for words in of_trl[-1:] or commands:
        if of_trl:
            flat["trl.trainer"] = _of_trl(words)
        words = [part for word in words for part in (word.split() if NESTED.search(word) else [word])]
        launcher = any(Path(word).name in LAUNCHERS for word in words)
        script = next((at for at, word in enumerate(words) if word.endswith(".py")), -1)
        name = Path(words[script]).name if script >= 0 else ""
        if MEGATRONS.match(name) and EXPANDABLE.search(text):
            flat["launcher.expandable_segments"] = True
        if MEGATRONS.match(name) and name != "pretrain_gpt.py":
            flat["launcher.script"] = name
        if launcher and script > 0:
            flat |= {f"launcher.{name}": value for name, value in _options(words[:script])}
        if words[0] == "nemo":
            flat |= {"launcher.nemo": words[2]}  # pretrain or finetune
        given = words[script + 1 :] if script >= 0 else words
        flat |= _named_file(given)
        flat |= dict(_options(given))
    if not flat:
        raise ValueError("no option such as --micro-batch-size 1 is in it")
    return flat


def _assigned(text: str) -> Iterator[tuple[str, str]]:
    for found in ASSIGNED.finditer(text):
        name, value = found.group(1), found.group(2)
        if value[:1] in "\"'" or (value.startswith("(") and value.endswith(")")):
            value = value[1:-1]
        yield name, " ".join(line.partition(" #")[0] for line in value.splitlines())


def _filled(text: str, variables: dict[str, str]) -> str:
    def value(found: re.Match[str]) -> str:
        name = found.group(1) or found.group(3)
        return variables.get(name, (found.group(2) or found.group()).strip(QUOTES))

    def calculated(found: re.Match[str]) -> str:
        words = next(one for one in found.groups() if one is not None).replace("\\*", "*")
        filled = re.sub(r"[A-Za-z_]\w*", lambda one: variables.get(one.group(), one.group()), words)
        return whole_number(filled) or found.group()

    for _ in range(5):  # variables of variables
        filled = ARITHMETIC.sub(calculated, USED.sub(value, text))
        if filled == text:
            break
        text = filled[:LARGEST_FILE_B]
    return OUTPUT.sub("$command_output", text)


OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}
"""A shell divides whole numbers."""


def whole_number(text: str) -> str:
    """Return the value of a sum or product of whole numbers, "" where it is none or has none."""
    if not SUM.fullmatch(text) or len(text) > 200:
        return ""

    def value(node: ast.expr) -> int:
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return node.value
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            return OPERATORS[type(node.op)](value(node.left), value(node.right))
        raise ValueError(ast.dump(node))

    try:
        return str(value(ast.parse(text.strip(), mode="eval").body))
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
        return ""


def _commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each command; assignments are no commands, unless nothing else has options."""
    without = ASSIGNED.sub("", text)
    for part in (without, text):
        found = [line for line in re.split(r"[\n;]|&&|\|\|", part) if STARTS.search(line)]
        if found:
            for line in found:
                if part is text:
                    line = line.replace('"', " ").replace("'", " ")
                try:
                    yield [part for word in shlex.split(line, comments=True) for part in _without_array(word)]
                except ValueError:
                    yield line.replace('"', " ").replace("'", " ").split()
            return


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


def _without_array(word: str) -> list[str]:
    """Return a word without the brackets of an array or a subshell; those of a value such as ([0]*3) stay."""
    whole = word.count("(") == word.count(")") and not ARRAY.match(word)
    return [word] if whole else re.sub(r"[()]", " ", word).split()


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
