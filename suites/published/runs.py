"""Public training runs: what was set, what came out, where it is printed; and how far off an answer is.

A run is a line of runs.jsonl; without its outcome it is a question. docs/extend/published-rows.md says how to
add one.

    python -m suites.published.runs questions=FILE              the runs as questions
    python -m harness.fit questions=FILE out=BYTES              what is answered
    python -m harness.advise questions=FILE out=SECONDS
    python -m suites.published.runs bytes=BYTES seconds=SECONDS    how far off that is, by kind of run

With files=FOLDER, a folder of fetched repositories (FOLDER/owner/name), the runs are those alone whose
publisher committed a configuration that lies there; each is asked by that file.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from suites.training.step_time.published.rows import PublishedRun, published_runs, question
from suites.training.step_time.questions import device_fields

KINDS = {
    "dense": "Dense pretraining",
    "experts": "Mixtures of experts, pretraining",
    "hybrid": "Hybrids, pretraining",
    "fp8": "FP8 and narrower, pretraining",
    "long_context": "32,768 tokens and more",
    "full": "Full fine-tuning",
    "lora": "LoRA and adapters",
    "qlora": "LoRA on a quantized base",
    "post_training": "DPO and GRPO",
    "vision": "Vision and language",
}
LONG = 32768


def kind_of(run: PublishedRun) -> str:
    """Return the kind of a run, of `KINDS`: the first that holds."""
    name, precision = run.model.lower(), run.precision.lower()
    if any(word in run.method for word in ("grpo", "dpo", "ppo", "kto", "orpo")):
        return "post_training"
    if any(word in name for word in ("-vl", "vlm", "llava", "pixtral")):
        return "vision"
    if (run.seq_len or 0) >= LONG:
        return "long_context"
    if run.kind == "finetune":
        quantized, adapters = "qlora" in run.method, "lora" in run.method or "adapter" in run.method
        return "qlora" if quantized else "lora" if adapters else "full"
    if any(word in name for word in ("hybrid", "mamba")):
        return "hybrid"
    if any(word in precision for word in ("fp8", "fp4")):
        return "fp8"
    return "experts" if run.shape.get("experts") else "dense"


def group_of(run: PublishedRun) -> str:
    """Return what runs share of which one can choose: model, cluster, length and precision; "" for others."""
    if run.kind != "pretrain" or run.seq_len is None:
        return ""
    return f"{run.source}: {run.model}, {run.gpus} × {run.device}, {run.seq_len:,} tokens, {run.precision}"


def set_up_of(run: PublishedRun) -> str:
    """Return a run's id, or that of another one of the same set-up: there is no choice between them."""
    return str(run.other.get("same_set_up_as") or run.id)


def tokens_per_s(run: PublishedRun, answer: AnswerLine) -> tuple[float | None, float | None]:
    """Return the tokens/s per GPU that were published, 0 of a run that failed, and those to be expected."""
    published = 0.0 if run.outcome.runs is False else run.outcome.tokens_s_per_gpu
    if published is None and run.step_s and run.sequences and run.seq_len:
        published = run.sequences * run.seq_len / run.step_s / run.gpus
    if published is None and run.outcome.tflops_per_gpu and run.parameters_B:
        published = (
            1e3 * run.outcome.tflops_per_gpu / (6 * run.parameters_B)
        )  # alike but for a factor in a group
    first: Mapping[str, Any] = next(iter(answer.get("layouts") or ()), {})
    rate, chance = first.get("tokens_per_s_per_device"), first.get("chance_to_run")
    return published, None if rate is None or chance is None else rate * chance


class Score(NamedTuple):
    """How an answer compares with what was published; None where that is not reported or not answered."""

    refused: bool
    wrong: bool | None = None  # a firm verdict
    caught: bool | None = None  # of a run that failed: not called "fits"
    depends: bool | None = None
    error: float | None = None  # (predicted − published) / published
    inside: bool | None = None  # the published value, in the 90 % interval
    half_width: float | None = None  # of the interval, over the predicted value
    level: float | None = None  # of the narrowest interval that holds the published value


AnswerLine = Mapping[str, Any]
"""A line that `questions=` writes: the fields of answer.json."""


REFUSED: AnswerLine = {"verdict": "refused"}
"""What silence counts as."""


def of_bytes(run: PublishedRun, answer: AnswerLine) -> Score:
    """Return the score of what `harness.fit` says of a run."""
    ran, verdict = run.outcome.runs, str(answer["verdict"])
    found = peak_of(run, answer)
    lacking = run.outcome.peak_GB is not None and found is None
    score = Score(
        refused=verdict == "refused" or lacking,
        wrong=None if ran is None or verdict not in ("fits", "does not fit") else (verdict == "fits") != ran,
        caught=None if ran is not False else verdict in ("does not fit", "depends"),
        depends=None if verdict == "refused" else verdict == "depends",
    )
    return score if found is None else compared(score, run.outcome.peak_GB or math.nan, *found)


def peak_of(run: PublishedRun, answer: AnswerLine) -> tuple[float, float, float] | None:
    """Return the predicted peak of the kind that was published, with its interval, in 10⁹ B.

    What was reserved, and what nvidia-smi shows, is compared with reserved bytes; a peak of an unknown kind
    with the nearer of the two.
    """
    published, kind = run.outcome.peak_GB, run.outcome.peak_kind
    kinds: tuple[str, ...] = ("allocated", "reserved")
    if kind != "unknown":
        kinds = ("allocated",) if kind in ("allocated", "active") else ("reserved",)
    peaks = [
        tuple(float(answer.get(f"peak_{one}{end}_GB", math.nan)) for end in ("", "_low", "_high"))
        for one in kinds
        if answer.get(f"peak_{one}_GB")
    ]
    if published is None or not peaks:
        return None
    likely, low, high = min(peaks, key=lambda peak: abs(math.log(peak[0] / published)))
    return likely, low, high


def of_seconds(run: PublishedRun, answer: AnswerLine) -> Score:
    """Return the score of what `harness.advise` says of a run: its seconds as tuned, its interval as run."""
    published, predicted = run.step_s, answer.get("step_s")
    score = Score(refused=answer["verdict"] == "refused" or (published is not None and not predicted))
    if published is None or not predicted:
        return score
    low, high = (float(answer.get(name, math.nan)) for name in ("step_low_s", "step_high_s"))
    tuned = answer.get("step_tuned_s") or predicted  # no constant of which was fitted to these runs
    return compared(score, published, predicted, low, high)._replace(error=tuned / published - 1)


def compared(score: Score, published: float, likely: float, low: float, high: float) -> Score:
    """Return a score with the error of a predicted value and what its interval holds."""
    return score._replace(
        error=likely / published - 1,
        inside=None if math.isnan(high - low) else low <= published <= high,
        half_width=(high - low) / 2 / likely,
        level=level_of(published, likely, low, high),
    )


Z_90 = 1.6448536269514722
"""Standard deviations from the mean to either end of a normal distribution's 90 % interval."""


def level_of(published: float, likely: float, low: float, high: float) -> float | None:
    """Return the level of the narrowest interval that holds a value; None without an interval.

    Either side of the 90 % interval is scaled as that of a normal distribution of logarithms.
    """
    if math.isnan(high - low):
        return None
    end = high if published > likely else low
    if end in (0, math.inf):
        return 0.0
    distance, width = abs(math.log(published / likely)), abs(math.log(end / likely))
    return float(distance > 0) if width == 0 else math.erf(Z_90 * distance / width / math.sqrt(2))


HEADS = ("n", "refused", "wrong", "caught", "depends", "median", "nine in ten", "inside", "half width")


def summary(
    runs: Sequence[PublishedRun], asked: str, answers: Mapping[str, AnswerLine]
) -> Iterator[tuple[str, ...]]:
    """Yield a row of `HEADS` for each kind of run and for all; `asked`: bytes or seconds."""
    score_of = {"bytes": of_bytes, "seconds": of_seconds}[asked]
    scores = [
        (kind_of(run), score_of(run, answers.get(run.id, REFUSED)))
        for run in runs
        if asked == "bytes" or run.step_s is not None
    ]
    for kind, title in (*KINDS.items(), ("", "All")):
        of = [score for one, score in scores if kind in ("", one)]
        if of:
            yield title, *figures(of)


def figures(scores: Sequence[Score]) -> Iterator[str]:
    """Yield the figures of some scores as text: their number, shares, errors and intervals."""
    yield str(len(scores))
    for name in ("refused", "wrong", "caught", "depends"):
        yield percent([float(one) for score in scores if (one := getattr(score, name)) is not None])
    errors = [abs(score.error) for score in scores if score.error is not None]
    yield percent(errors, 0.5)
    yield percent(errors, 0.9)
    yield percent([float(score.inside) for score in scores if score.inside is not None])
    widths = [score.half_width for score in scores if score.half_width is not None]
    yield percent([one for one in widths if not math.isnan(one)], 0.5)


def percent(values: Sequence[float], quantile: float | None = None) -> str:
    """Return the mean of values, or a quantile, in percent; a dash where there is none."""
    if not values:
        return "–"
    value = np.mean(values) if quantile is None else np.quantile(values, quantile)
    return f"{100 * value:.1f} %"


def asked_by_file(run: PublishedRun, folder: Path) -> dict[str, Any] | None:
    """Return the words of `harness.fit` with the file that the publisher committed; None without one.

    The run's own values stand in for the file's where a page's table has a row for each, and so does its
    model where rows of several name one file.
    """
    repository, _, path = run.file.partition(" ")
    file = folder / repository / path
    if not path or not file.is_file():
        return None
    found = device_fields(run.device)
    device = f"{found['memory_B'] / 1e9:g}GB" if "memory_B" in found else found["device"]
    several = len({one.model for one in published_runs() if one.file == run.file}) > 1
    given: dict[str, Any] = {"seq_len": run.seq_len, "micro_batch_size": run.micro_batch_size}
    given["model"] = run.model if several else None
    words = {name: value for name, value in given.items() if value is not None}
    return {"id": run.id, "config": str(file), "device": device, "devices": run.gpus, **words}


def main(words: Sequence[str]) -> None:
    """Write the runs as questions, or print how far off answers to them are."""
    paths = {key: Path(path) for key, _, path in (word.partition("=") for word in words)}
    files = paths.get("files")
    asked_as = {run.id: asked_by_file(run, files) if files else question(run) for run in published_runs()}
    runs = [run for run in published_runs() if asked_as[run.id]]
    if "questions" in paths:
        lines = (json.dumps(asked_as[run.id], ensure_ascii=False) for run in runs)
        paths["questions"].write_text("\n".join(lines) + "\n", encoding="utf-8")
    for asked in ("bytes", "seconds"):
        if asked in paths:
            said = map(json.loads, paths[asked].read_text(encoding="utf-8").splitlines())
            rows = [(asked, *HEADS), *summary(runs, asked, {one["id"]: one for one in said})]
            widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
            for title, *cells in rows:
                texts = (cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))
                sys.stdout.write("  ".join([title.ljust(widths[0]), *texts]) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
