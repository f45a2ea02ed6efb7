"""Generates the page on how many architectures run: docs/architectures.md."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import transformers

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

from provenance import mark, sentence

STATUSES = ("ok", "data-dependent", "unsupported", "error", "not installed", "too big", "timeout", "crash")
MEANINGS = {
    "ok": "runs",
    "data-dependent": "depends on values",
    "not installed": "needs a package that is not installed",
    "too big": "does not fit into the memory allowed",
    "timeout": "does not end in the time allowed",
}
TITLES = {
    "torchfake-cuda": "torchfake, claimed CUDA",
    "torchfake-selects-all": "the same with `selects_all`",
    "torchfake-cpu": "torchfake, claimed CPU",
    "FakeTensorMode": "FakeTensorMode, CPU",
    "real": "for real, small",
}
REAL_VALUES = "torchfake-real-values"  # run for models that depend on values

EXPERTS = """
    aria aria_text dbrx deepseek_v2 deepseek_v3 dots1 ernie4_5_moe flex_olmo glm4_moe glm4v_moe glm4v_moe_text
    gptsan-japanese granitemoe granitemoehybrid granitemoeshared hunyuan_v1_moe jamba jetmoe longcat_flash minimax
    mixtral nllb-moe olmoe phimoe qwen2_moe qwen3_moe qwen3_next qwen3_omni_moe switch_transformers
"""

# Where the value comes from in models that stop at one, found by reading their code.
READ = {
    "how many tokens a router gives to each expert": EXPERTS.split(),
    "the same, on a claimed CPU; on a GPU every expert gets every token": ["gpt_oss"],
    "the length of a patch, which ends where the next byte is hard to predict": ["blt"],
    "whether the speech that it generates has a stop token": ["clvp"],
    "how many boxes overlap": ["deta"],
    "the duration of the sounds it predicts": ["fastspeech2_conformer", "fastspeech2_conformer_with_hifigan"],
    "how many points of a picture score above a threshold": ["lightglue", "superglue", "superpoint"],
    "which queries a predicted mask leaves with nothing": ["oneformer"],
    "how many samples lie inside the interval of a spline": ["vits"],
}


HEAD = """# Which architectures run

{mark}

{sentence}

The {types} model types of `transformers` {transformers} ({models} base models), each built at its default config and
run forward once on plain inputs: token ids and masks are constants, pictures and sound are random. In evaluation mode:
while they train, some draw at random which layers to skip. Where a default makes no model, it is completed in
`tests/models/plain_configs.py`; the inputs are in `tests/models/plain_inputs.py`. Models with a backbone from elsewhere
need `timm` and `torchvision`.

For real, most defaults do not fit into a small machine. The last column has two layers, and fewer experts, words and
inner features; a model that cannot be made small runs whole. It tells whether the inputs are right, and compares sizes,
strides and dtypes of the outputs with those of the same model on fakes that claim the CPU.

```sh
export HF_HUB_OFFLINE=1
python tests/models/all_architectures.py --engines {engines} \\
    --json outcomes.json --resume --memory 20 --timeout 400 --markdown docs/architectures.md
```

`--engines torchfake-real-values --only a,b,c` with the rest of it adds those that depend on values, with real ones.
"""


@dataclass(frozen=True)
class Outcome:
    """The outcome of one architecture on one engine."""

    model_type: str
    model_class: str
    engine: str
    status: str
    seconds: float
    memory: int = 0  #: the peak memory of the process in bytes
    error: str = ""
    message: str = ""
    frame: str = ""  #: the last line of `transformers` in the error's traceback


def page(outcomes: list[Outcome], source: dict[str, Any]) -> str:
    """The page of a sweep; `source` describes the provenance of its outcomes, as in tools/provenance.py."""
    engines = [engine for engine in TITLES if any(outcome.engine == engine for outcome in outcomes)]
    head = HEAD.format(
        mark=mark(source["commit"]),
        sentence=sentence(source),
        types=len({outcome.model_type for outcome in outcomes}),
        models=len({(outcome.model_type, outcome.model_class) for outcome in outcomes}),
        transformers=transformers.__version__,
        engines=",".join(engines),
    )
    counts = table(["", *(TITLES[engine] for engine in engines)], count(outcomes, engines))
    return "\n".join([head, *counts, "", *what_does_not_run(outcomes)]) + "\n"


def count(outcomes: list[Outcome], engines: list[str]) -> Iterable[list[str]]:
    counts = Counter((outcome.engine, outcome.status) for outcome in outcomes)
    for status in STATUSES:
        if any(counts[engine, status] for engine in engines):
            yield [MEANINGS.get(status, status), *(str(counts[engine, status]) for engine in engines)]
    models = len({(outcome.model_type, outcome.model_class) for outcome in outcomes})
    untried = [models - sum(counts[engine, status] for status in STATUSES) for engine in engines]
    if any(untried):
        yield ["not tried", *map(str, untried)]


def what_does_not_run(outcomes: list[Outcome]) -> Iterable[str]:
    """The architectures that do not run with torchfake, with their real outcomes."""
    failed: dict[str, Outcome] = {}
    for outcome in outcomes:
        if outcome.engine.startswith("torchfake") and outcome.engine != REAL_VALUES and outcome.status != "ok":
            failed.setdefault(outcome.model_type, outcome)
    of_values = [each for each in failed.values() if each.status == "data-dependent"]
    yield "## What depends on values"
    yield ""
    yield "These look, while they run, at values that follow from weights or random inputs. A fake has none, and"
    yield "nothing is guessed: they stop with an error that names the operator. `fake_mode(selects_all=True)` asks for"
    yield "a guess, that masks of unknown values select everything; those that only count or select run then."
    yield "`FakeTensorMode(propagate_real_tensors=True)` guesses nothing: real values, on the CPU, travel along. They"
    yield "take the memory that real tensors take, so the last column is of the models as small as they run for real."
    yield ""
    reasons = {model_type: reason for reason, model_types in READ.items() for model_type in model_types}
    groups: dict[str, list[str]] = {}
    for each in of_values:
        reason = reasons.get(each.model_type, f"not looked into: `{each.frame}`")
        groups.setdefault(reason, []).append(each.model_type)
    with_values = {outcome.model_type: outcome for outcome in outcomes if outcome.engine == REAL_VALUES}
    yield from table(
        ["what is looked at", "", "", "with real values"],
        (
            [reason, str(len(names)), ", ".join(names), what_became([with_values.get(name) for name in names])]
            for reason, names in groups.items()
        ),
    )
    yield ""
    yield "## What else does not run"
    yield ""
    for_real = {outcome.model_type: outcome for outcome in outcomes if outcome.engine == "real"}
    rows = []
    for each in failed.values():
        if each.status != "data-dependent":
            real = for_real.get(each.model_type)
            rows.append([each.model_type, first_sentence(each), MEANINGS.get(real.status, real.status) if real else ""])
    yield from table(["", "on fakes", "for real"], rows)
    differing = [each for each in for_real.values() if each.error == "Differs"]
    if differing:
        yield ""
        yield "## What looks otherwise for real"
        yield ""
        yield from table(["", "difference"], ([each.model_type, each.message] for each in differing))


def what_became(outcomes: list[Outcome | None]) -> str:
    runs = sum(outcome is not None and outcome.status == "ok" for outcome in outcomes)
    others = (each for each in outcomes if each is not None and each.status != "ok")
    said = [f"{each.model_type} {MEANINGS.get(each.status, each.status)}" for each in others]
    untried = outcomes.count(None)
    return "; ".join([f"{runs} run", *said, *([f"{untried} not tried"] if untried else [])])


def first_sentence(outcome: Outcome) -> str:
    text = " ".join(outcome.message.split()).partition(". ")[0]
    return f"{outcome.error}: {text}".strip(": ").replace("|", "\\|") or outcome.status


def table(head: list[str], rows: Iterable[list[str]]) -> Iterable[str]:
    yield f"| {' | '.join(head)} |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield f"| {' | '.join(row)} |"
