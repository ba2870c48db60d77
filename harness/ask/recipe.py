"""A question's recipe as techniques, which a dry run applies, and its what-ifs: changes that are tried."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from harness.ask.words import mistake, positions_of
from harness.config.hf_config import POSITIONS, USUAL_SEQ_LEN, has_size
from harness.config.optimizations import CONF, read_yaml
from harness.config.techniques import Named, checked_techniques, combination, declared, title_of
from harness.config.validation import ConfigError, Role
from harness.question import AskedChange, Question

TOKEN_BY_TOKEN = frozenset(["falcon_mamba", "jamba", "mamba", "recurrent_gemma", "rwkv"])
"""Architectures whose code in transformers has a loop over tokens."""

BY_CHUNKS = frozenset(["qwen3_5_moe_text", "qwen3_5_text", "qwen3_next"])
"""Architectures whose code has a loop over chunks of tokens: only the micro-batch asked about is dry-run."""

FOLDED_TOKENS = 2048
"""Tokens of such a sequence from which on it is folded, see `folded`."""

MOST_UNFOLDED = 8192
"""Tokens of such a sequence at most where attention keeps its scores, which folding would lose."""

MOST_TOKENS = 128
"""Tokens of such a sequence at most: a dry run of 24 layers then takes 10 s, and the answer needs several."""

SPLITTING = (Role.TENSOR_PARALLELISM, Role.CONTEXT_PARALLELISM, Role.PIPELINE_PARALLELISM)
"""Roles of techniques whose number of ranks is not that of `devices`."""


def with_techniques(question: Question) -> tuple[Question, tuple[str, ...]]:
    """Return the question with its recipe as techniques, and what of it they leave out, in words.

    Raises ConfigError where they do not combine, or do not share the model over just these devices.
    """
    from harness.frameworks.techniques import approximated, techniques_of

    question, left_out = with_positions(question)
    refuse_length(question)
    if question.techniques is not None:
        listed: list[Mapping[str, Any]] = [{name: settings} for name, settings in question.techniques]
    else:
        with mistake():
            found = techniques_of(question)
        listed = [{name: settings} for name, settings in found.techniques]
        left_out += found.left_out
        if question.optimizer == "adamw_8bit" and "optimizer" in question.offload:
            left_out += ("8-bit states on the host, taken as fp32 ones there",)
        elif question.optimizer != "adamw":
            unfused = (question.optimizer, question.sharing) == ("sgd_momentum", "fsdp2")  # torch has none
            how = {"impl": "for_loop"} if unfused else {}
            listed.append({"optimizer": {"name": question.optimizer, **how}})
        question = msgspec.structs.replace(question, keys=(*question.keys, *approximated(question)))
    recipe = combination(listed)
    devices = question.all_devices()
    refuse_sharing(recipe, devices)
    return with_recipe(question, recipe, devices=devices), left_out


def with_positions(question: Question) -> tuple[Question, tuple[str, ...]]:
    """Return the question with as many positions as its sequences have, and a note; learned ones stay.

    Rotary embeddings have no weights, and programs run them beyond max_position_embeddings.
    """
    config, tokens, longest = question.config or {}, question.seq_len or 0, positions_of(question)
    if tokens <= (longest or USUAL_SEQ_LEN) or not has_size(str(config.get("model_type")), "rope_"):
        return question, ()
    key = next((name for name in POSITIONS if config.get(name)), "max_position_embeddings")
    longer = msgspec.structs.replace(question, config={**config, key: tokens})
    if longest is None:
        return longer, ()
    return longer, (f"sequences beyond the model's {longest:,} positions, which rotary embeddings allow",)


def refuse_length(question: Question) -> None:
    """Raise ConfigError for sequences that the model cannot have, or whose dry run would take minutes."""
    longest, tokens = positions_of(question), question.seq_len or 0
    model_type = (question.config or {}).get("model_type")
    if longest is not None and tokens > longest:
        raise ConfigError(f"seq_len={tokens}: expected at most the model's positions, {longest}")
    if model_type in TOKEN_BY_TOKEN and tokens > MOST_TOKENS:
        raise ConfigError(
            f"seq_len={tokens}: transformers runs {model_type} token by token, so its dry runs take minutes; "
            f"expected at most {MOST_TOKENS}"
        )


def folded(question: Question) -> tuple[Question, int]:
    """Return a question about long sequences in chunks as one about more, shorter ones, and how many times.

    As many tokens in as many chunks keep the same bytes, but for temporaries of one chunk, which are larger;
    a dry run takes as long as a sequence has chunks. With a score matrix the length would count: raises
    ConfigError for more than `MOST_UNFOLDED` tokens then.
    """
    tokens, model_type = question.seq_len or 0, (question.config or {}).get("model_type")
    if model_type not in BY_CHUNKS or tokens <= FOLDED_TOKENS:
        return question, 1
    if "attention" not in dict(question.techniques or ()):
        if tokens <= MOST_UNFOLDED:
            return question, 1
        raise ConfigError(
            f"seq_len={tokens}: transformers runs {model_type} by chunks of tokens, so its dry runs take "
            f"minutes; expected at most {MOST_UNFOLDED}, or the technique attention"
        )
    times = -(-tokens // FOLDED_TOKENS)
    shorter = {"seq_len": -(-tokens // times), "micro_batch_size": question.micro_batch_size * times}
    return msgspec.structs.replace(question, **shorter), times


def with_recipe(question: Question, recipe: Named, **fields: Any) -> Question:
    """Return the question with techniques, and other values of further fields."""
    techniques = tuple((name, dict(settings)) for name, settings in recipe)
    return msgspec.structs.replace(question, techniques=techniques, **fields)


def described(question: Question) -> str:
    """Return the techniques with their settings, without the optimizer's name."""
    every = question.techniques or ()
    named = [title_of((one,)) for one in every if (one[0], *one[1]) != ("optimizer", "name")]
    return ", ".join(named) or "none, plain PyTorch"


def refuse_sharing(recipe: Named, devices: int) -> None:
    """Raise ConfigError where a recipe does not share the model over just these devices."""
    sharing = [name for name, one in sorted(declared().items()) if one.role is Role.PARALLELISM]
    allowed = ", ".join(name for name in sharing if not declared()[name].no_dry_run)
    for name, _ in recipe:
        if declared()[name].role in SPLITTING:
            raise ConfigError(
                f"techniques.{name}: not a technique of harness.fit, whose devices share a model by one of "
                f"{allowed}; layout= divides a model"
            )
    if devices > 1 and not any(name in sharing for name, _ in recipe):
        raise ConfigError(f"devices={devices}: none of techniques uses more than one; add one of {allowed}")


def what_ifs_of(question: Question, everything: bool) -> Iterator[AskedChange]:
    """Yield the what-ifs of conf/fit.yaml that change this recipe; `everything`: the slow ones, too."""
    recipe = tuple(question.techniques or ())
    other = "several" if question.devices == 1 else "one"
    for entry in read_yaml(CONF / "fit.yaml")["what_ifs"]:
        having = entry.get("having", {}).items()
        absent = any(not dict(recipe).get(name, {}).get(key) for name, key in having)
        if entry.get("devices", "") == other or absent:
            continue
        try:
            changed = changed_recipe(recipe, entry)
        except ConfigError as error:
            yield AskedChange(title=entry["title"], reason=str(error))
            continue
        times = entry.get("times", {})
        sizes = {name: max(1, int(getattr(question, name) * by)) for name, by in times.items()}
        if changed == recipe and not sizes:
            continue  # the recipe has it
        if entry.get("slow") and not everything:
            yield AskedChange(title=entry["title"], reason="try it with what_ifs=all")
        else:
            yield AskedChange(title=entry["title"], question=with_recipe(question, changed, **sizes))


def changed_recipe(recipe: Named, entry: Mapping[str, Any]) -> Named:
    """Return the recipe with a what-if's techniques; raises ConfigError where they do not combine."""
    merged = {name: dict(settings) for name, settings in recipe if name not in entry.get("without", ())}
    for name, settings in checked_techniques("conf/fit.yaml", list(entry.get("techniques", ()))):
        merged[name] = {**merged.get(name, {}), **settings}
    return combination([{name: settings} for name, settings in merged.items()])
