"""A framework's own file as words of a question about a layout, and a layout as a framework's own file.

`python -m harness.fit config=` asks so where the file divides the model, or where Megatron-LM or nanotron
trains; `python -m harness.advise config=` always does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from harness.commands.fit import layouts
from harness.commands.fit.own_file import OWN_KEYS, model_path, read_lines, setup_of
from harness.commands.grammar import CommandWords, read
from harness.config.validation import ConfigError

if TYPE_CHECKING:
    from harness.config.own_files.setup import OwnSetup

PROGRAMS = {
    "megatron": "megatron",
    "nanotron": "nanotron",
    "zero": "deepspeed",
    "fsdp2": "torchtitan",
    "fsdp1": "composer",
    "ddp": "torchtitan",
}
"""The program of the account whose engine a set-up has."""

OWN_PROGRAMS = {
    "torchtitan": "torchtitan",
    "megatron": "megatron",
    "megatron_bridge": "megatron",
    "nanotron": "nanotron",
    "deepspeed": "deepspeed",
    "llm_foundry": "composer",
}
"""The program of a format that has one of its own."""

PRECISIONS = ("bf16", "fp8", "mxfp8", "nvfp4")
OPTIMIZERS = ("adamw", "adamw_8bit", "sgd_momentum")
"""What the account of layouts has (suites/layouts/subject.py)."""


@dataclass(frozen=True)
class OwnLayout:
    """A framework's file as a question about its layout."""

    path: Path
    setup: OwnSetup
    words: tuple[str, ...]  # of the question
    left_out: tuple[str, ...]  # of the set-up, in words

    def lines(self) -> Iterator[str]:
        """Yield what was read, what is not modelled, and what the account of layouts leaves out."""
        from harness.commands.fit.lines import wrapped

        yield ""
        for line in read_lines(self.path, self.setup):
            yield from wrapped(line, "  ")
        if self.left_out:
            yield from wrapped(f"Not in the account: {'; '.join(self.left_out)}.", "  ")


def own_layout(argv: Sequence[str], fit_keys: Iterable[str]) -> OwnLayout | None:
    """Return the question of `config=` to harness.fit where it is one about a layout, else None.

    `fit_keys`: all keys of the command. Raises ConfigError.
    """
    given = read(argv, tuple(dict.fromkeys([*fit_keys, *OWN_KEYS, *layouts.KEYS])))
    if "config" not in given or "oom" in given:
        return None
    setup = own_setup(given)
    if "layout" not in given and not has_layout(setup):
        return None
    devices = given.whole("devices", 0) if "devices" in given else None
    return of_setup(given, setup, devices, "devices", Path(given.text("out", "results/fit")))


def own_setup(given: CommandWords) -> OwnSetup:
    """Return the set-up of `config=`; raises ConfigError."""
    try:
        return setup_of(Path(given.values["config"]), given)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def has_layout(setup: OwnSetup) -> bool:
    """Return whether the account of layouts answers for a set-up, and not a dry run of techniques."""
    divided = max(setup.tp, setup.pp, setup.cp, setup.ep) > 1
    return divided or setup.engine in ("megatron", "nanotron")


def of_setup(
    given: CommandWords,
    setup: OwnSetup,
    devices: int | None,
    devices_key: str,
    out: Path,
    whole_batch: bool = False,
) -> OwnLayout:
    """Return a set-up as the words of a question; what the command gives replaces what the file says.

    `devices_key`: the command's word for them. `whole_batch`: also a batch that follows from the steps of
    gradient accumulation is kept; else larger micro-batches may make it larger. Raises ConfigError.
    """
    left_out: list[str] = []
    try:
        changed = with_words(setup, given)
        if "layout" in given:
            count = devices or setup.devices
            if count is None:
                raise ValueError(f"{devices_key}: missing; give {devices_key}=N")
            layout = {"layout": given.values["layout"]}
        else:
            count = changed.dp_of(devices) * changed.model_ranks
            layout = {"layout": layout_text(changed, count)}
            kept = whole_batch or changed.global_batch_size is not None or changed.pp > 1
            if kept and (batch := batch_of(changed, count)):
                layout["global_batch_size"] = str(batch)
        fields = {**fields_of(changed, left_out), **layout, devices_key: str(count)}
        fields["model"] = model_path(given, changed, out)
        only_bytes = modules_and_dispatcher(changed) if fields["program"] == "megatron" else {}
        if devices_key == "devices":
            fields |= only_bytes
        else:
            left_out.extend(
                f"{key} {text}, of which seconds are not modelled" for key, text in only_bytes.items()
            )
    except ValueError as error:
        text = str(error).replace("devices=", f"{devices_key}=")
        raise ConfigError(text.replace("devices is missing", f"{devices_key} is missing")) from error
    own = {key: text for key, text in given.values.items() if key not in OWN_KEYS}
    if "tokens_per_batch" in own:
        fields.pop("global_batch_size", None)
    words = {**fields, **own, "model": fields["model"]}
    return OwnLayout(
        Path(given.values["config"]),
        changed,
        tuple(f"{key}={text}" for key, text in words.items()),
        tuple(left_out),
    )


def with_words(setup: OwnSetup, given: CommandWords) -> OwnSetup:
    """Return the set-up with the batch, lengths and types that the command gives."""
    changes: dict[str, object] = {
        key: given.whole(key, 1) for key in ("seq_len", "micro_batch_size") if key in given
    }
    if "global_batch_size" in given:
        changes |= {
            "global_batch_size": given.whole("global_batch_size", 1),
            "gradient_accumulation_steps": None,
        }
    changes |= {key: given.values[key] for key in ("optimizer", "precision", "recompute") if key in given}
    return replace(setup, **changes)  # type: ignore[arg-type]


def layout_text(setup: OwnSetup, devices: int) -> str:
    """Return the file's layout as `layout=` has it; raises ValueError where it does not divide."""
    row = setup.layout(devices)
    parts = {name: row[name] for name in ("tp", "pp", "cp", "ep", "etp", "virtual_stages") if row[name] > 1}
    parts["zero"] = row["zero"]
    if row["shard_size"] != row["dp"] * row["cp"] and row["zero"]:
        parts["shard_size"] = row["shard_size"]
    if setup.tp > 1 and not setup.sequence_parallel:
        parts["sequence_parallel"] = 0
    if setup.ep == 1:
        parts.pop("etp", None)
    return ",".join(f"{name}:{size}" for name, size in parts.items())


def batch_of(setup: OwnSetup, devices: int) -> int | None:
    """Return the sequences of a step; None where the file does not say."""
    if setup.global_batch_size is None and setup.gradient_accumulation_steps is None:
        return None
    return setup.micro_batch_size * setup.micro_batches(devices) * setup.dp_of(devices)


def fields_of(setup: OwnSetup, left_out: list[str]) -> dict[str, str]:
    """Return the words of a set-up but those of its layout and batch; `left_out` gets what they cannot say.

    Raises ValueError for what would make the answer one about another run.
    """
    if setup.adapters is not None:
        raise ValueError(
            f"{setup.format}: adapters on a frozen model are not in the account of layouts; harness.fit "
            "answers for them without tp, pp, cp and ep"
        )
    if setup.precision not in (*PRECISIONS, "fp16"):
        raise ValueError(
            f"{setup.format}: precision {setup.precision} is not in the account of layouts, which has "
            f"{', '.join(PRECISIONS)}; give precision="
        )
    if setup.optimizer not in OPTIMIZERS:
        raise ValueError(
            f"{setup.format}: optimizer {setup.optimizer} is not in the account of layouts, which has "
            f"{', '.join(OPTIMIZERS)}; give optimizer="
        )
    program = OWN_PROGRAMS.get(setup.format) or PROGRAMS[setup.engine]
    if setup.format == "megatron" and setup.engine == "fsdp2":
        program = "torchtitan"
    found = {
        "program": program,
        "recompute": setup.recompute,
        "precision": "bf16" if setup.precision == "fp16" else setup.precision,
        "optimizer": setup.optimizer,
        "micro_batch_size": str(setup.micro_batch_size),
        "offload": offload_of(setup),
        "fused_loss": str(setup.fused_loss or setup.loss_chunks > 1).lower(),
        "compiled": str(setup.compile).lower(),
    }
    if setup.seq_len is not None:
        found["seq_len"] = str(setup.seq_len)
    else:
        left_out.append("the file has no sequence length; seq_len= gives one")
    left_out.extend(unmodelled(setup, program))
    return found


def modules_and_dispatcher(setup: OwnSetup) -> dict[str, str]:
    """Return the words that are not Megatron-LM's most usual ones."""
    found = {}
    if setup.recompute_modules:
        found["recompute_modules"] = f"[{','.join(setup.recompute_modules)}]"
    if setup.dispatcher != "alltoall":
        found["dispatcher"] = setup.dispatcher
    return found


def offload_of(setup: OwnSetup) -> str:
    """Return what is on the host, as `offload=` has it."""
    names = {one.partition(":")[0] for one in setup.offload}
    return "parameters" if "parameters" in names else "optimizer" if "optimizer" in names else "none"


def unmodelled(setup: OwnSetup, program: str) -> Iterator[str]:
    """Yield what of a set-up the account takes for something else."""
    if program not in (setup.format, OWN_PROGRAMS.get(setup.format)):
        yield f"{setup.format}'s {setup.engine}, taken as {program}'s"
    if setup.precision == "fp16":
        yield "fp16, taken as bf16, which has the same bytes"
    if setup.states == "bf16":
        yield "states in bf16, taken as fp32's, so that the memory given is too much"
    if setup.recompute == "full" and setup.recompute_every > 1:
        yield f"every {setup.recompute_every}nd or later layer alone is recomputed; all of them are taken"
    if setup.pp > 1 and setup.schedule not in ("1f1b", "interleaved1f1b"):
        yield f"schedule {setup.schedule}, taken as 1F1B"
    if setup.attention == "explicit":
        yield "attention with explicit scores, taken as a flash kernel's"
    if "activations" in {one.partition(":")[0] for one in setup.offload}:
        yield "activations on the host"
    if any(":" in one for one in setup.offload):
        yield f"offload to {setup.offload[0].partition(':')[2]}, taken as the host's memory"
    if setup.compile:
        yield "what torch.compile saves of memory"
    if setup.optimizer_in_backward:
        yield "the optimizer in the backward pass"
