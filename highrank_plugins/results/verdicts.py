"""Judge whether our numbers agree with a paper's, differ, or cannot be compared, with reasons."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import highrank_plugins
from highrank_plugins.analysis.statistics import Summary, confidence_interval
from highrank_plugins.common.blocks import read_tree
from highrank_plugins.common.names import did_you_mean
from highrank_plugins.results.comparison import Compared, ComparedSystem
from highrank_plugins.results.doubts import SCORING, STEPS, TEXT_BLOCKS, flat_settings
from highrank_plugins.results.metrics import KINDS
from highrank_plugins.results.perplexity import BEFORE
from highrank_plugins.results.published import (
    FILE,
    SIZES_DIFFER,
    Published,
    paper_format,
    read_published,
)
from highrank_plugins.training import configuration

_SOURCE = re.compile(r"(\w+) (?:et al\. |and \w+ )?(\d{4})")
_SETTINGS = Path(__file__).with_name("settings.yaml")
# options that change no number, or that other options determine
_ASIDE = re.compile(
    r"train\.(seed|log_interval|log_format|keep_.*|save_interval.*|no_epoch_checkpoints|user_dir"
    r"|distributed_world_size|eval_streams|criterion|data_buffer_size|required_batch_size.*)"
    r"|generate\.(batch_size|max_tokens|required_batch_size.*)"
)
# groups of differences → the options among them; all but `settings` forbid to compare
_GROUPS = {
    "parameters": r"train\..*(_dim|hidden_size|_layers|components|knots|ratio|_heads|arch)",
    "steps": STEPS,
    "data": rf"({'|'.join(TEXT_BLOCKS)})\..*",
    "scoring": SCORING,
    "signature": "",
    "settings": r"(train|finetune)\..*",
}
_FINETUNABLE = ("valid ppl", "test ppl")  # papers print these before and after finetuning
_BLEU = ("sacrebleu", "tokenised", "compound_split", "unstated")  # kinds of BLEU


class Verdict(NamedTuple):
    """Hold the cells of a system and a paper's: the verdict, why, and each difference."""

    system: str
    ours: str
    published: str
    theirs: str
    verdict: str
    why: str
    details: Sequence[str] = ()


def paper_keys(source: str) -> set[str]:
    """Return the short names of a source: `Yang et al. 2019 (Mixtape)` → `yang2019`."""
    return {f"{name.lower()}{year}" for name, year in _SOURCE.findall(source)}


def judge(compared: Compared, paper: str, task: str | None = None) -> list[Verdict]:
    """Return a verdict for each system on the tested metric; `paper` is such as yang2019."""
    task = task or _task(compared)
    published = [(entry, paper_keys(entry.source)) for entry in read_published(task)]
    entries = [entry for entry, keys in published if paper in keys]
    if not entries:
        known = sorted({key for _, keys in published for key in keys})
        raise ValueError(
            f"--paper {paper}: no scores for {task}{did_you_mean(paper, known)}; there are: "
            f"{', '.join(known)}"
        )
    tested = compared.metric.removesuffix(BEFORE)
    kinds = [kind for kind, metric in KINDS.items() if metric.name == tested]
    if not kinds:
        raise ValueError(f"--paper: papers do not report {compared.metric}; give another --metric")
    return [_judge(system, entries, kinds[0], task, compared) for system in compared.systems]


def _task(compared: Compared) -> str:
    tasks = read_tree(FILE).values
    runs = (run for system in compared.systems for run in system.runs)
    commands = {str(run.record.get("command", "")) for run in runs}
    found = {task for task in tasks for command in commands if f"/{task}/" in command}
    if len(found) != 1:
        raise ValueError(f"--paper: give --task with the recipe, one of {', '.join(tasks)}")
    return found.pop()


def _judge(
    system: ComparedSystem, entries: list[Published], kind: str, task: str, compared: Compared
) -> Verdict:
    numbers = system.summary(compared.metric)
    ours = _printed(kind, numbers)
    settings = flat_settings(system.runs[0].record)
    if compared.metric.endswith(BEFORE):
        settings = _without_finetuning(settings)
    layer = _layer(settings)
    candidates = [one for one in entries if layer and layer == _layer(_conf(one, task))]
    with_score = [entry for entry in candidates if kind in entry.scores]
    with_score = with_score or [entry for entry in candidates if _kind_in(entry, kind)]
    if not with_score:
        score = KINDS[kind].title if kind in _BLEU else kind
        what = "has no such layer" if not candidates else f"reports no {score} of it"
        return Verdict(system.name, ours, "–", "–", "not comparable", f"the paper {what}")
    reasons = {
        entry.system: list(_differences(entry, kind, settings, task)) for entry in with_score
    }
    entry = min(with_score, key=lambda entry: (len(reasons[entry.system]), -entry.seeds))
    # a size does not help to choose: an entry that states none would seem nearest to any
    found = [*_size(entry, system), *reasons[entry.system]]
    groups = [group for group in _GROUPS if group in dict(found)]
    blocking = [group for group in groups if group != "settings"]
    if numbers is None:
        verdict, why = "not comparable", f"our records have no {compared.metric}"
    elif blocking:
        verdict, why = "not comparable", f"other {', '.join(blocking)}"
    else:
        verdict, why = _test(numbers, _published(entry, kind), compared)
        why += ", other settings" if found else ""
    shown = _kind_in(entry, kind)
    theirs = _printed(shown, _published(entry, shown))
    details = [
        f"{system.name}: {group}: {', '.join(what for of, what in found if of == group)}."
        for group in groups
    ]
    details.append(_origin(entry, task))
    if shown in entry.errata:
        details.append(f"{entry.system}: {shown}: {entry.errata[shown]}.")
    return Verdict(system.name, ours, entry.system, theirs, verdict, why, details)


def _kind_in(entry: Published, kind: str) -> str:
    """Return the kind, or else one that scores the same text in another way; empty if none does."""
    alike = (k for k in entry.scores if {k, kind} <= {*_BLEU} or k.startswith(f"{kind} ("))
    return kind if kind in entry.scores else next(alike, "")


def _published(entry: Published, kind: str) -> Summary:
    sd = entry.deviations.get(kind, math.nan)
    return Summary(entry.scores[kind], sd, 1 if math.isnan(sd) else entry.seeds)


def _printed(kind: str, numbers: Summary | None) -> str:
    form = paper_format(kind)
    if numbers is None:
        return "–"
    more = f" ± {numbers.sd:{form}} (n = {numbers.n})" if numbers.n > 1 else ""
    return f"{numbers.mean:{form}}{more}"


def _conf(entry: Published, task: str) -> dict[str, object]:
    folder = Path(highrank_plugins.__file__).parents[1] / "recipes" / task / "conf"
    if entry.conf is None or not (folder / f"{entry.conf}.yaml").is_file():
        return {}
    settings = flat_settings({"config": configuration.load(folder / f"{entry.conf}.yaml").blocks()})
    return settings if "finetuned" in entry.system else _without_finetuning(settings)


def _origin(entry: Published, task: str) -> str:
    """Return a sentence on where settings of the configuration come from, see settings.yaml."""
    said: list[str] = []
    guesses: list[str] = []
    for pattern, found in read_tree(_SETTINGS).values.items():
        if re.fullmatch(pattern, f"{task}/{entry.conf}"):
            for name, (ours, printed) in found.get("departs", {}).items():
                said.append(f"{name} is {ours}, where {found['source']} {printed}")
            guesses += found.get("guesses", [])
    said += (
        [f"our guesses, which the paper does not print: {', '.join(guesses)}"] if guesses else []
    )
    rest = "all others are the paper's or its code's"
    return f"{entry.system}: settings of {entry.conf}: {'; '.join([*said, rest])}."


def _without_finetuning(settings: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in settings.items() if not name.startswith("finetune.")}


def _layer(settings: Mapping[str, object]) -> tuple[object, object, object] | None:
    """Return structure, function and matrix, as training chooses them; None if unknown."""
    from highrank_plugins.heads import tokens, with_layer_of_arch  # imports torch

    arch = f"_{settings.get('train.arch', '')}_"
    named = max((token for token in tokens() if f"_{token}_" in arch), key=len, default="")
    options = {name.removeprefix("train."): value for name, value in settings.items()}
    layer = with_layer_of_arch(options, tokens().get(named, {}))
    if "head" not in layer:
        return None
    others = layer.get("head_pointwise", "identity"), layer.get("head_vocabulary", "plain")
    return layer["head"], *others


def _differences(
    entry: Published, kind: str, settings: Mapping[str, object], task: str
) -> Iterator[tuple[str, str]]:
    """Yield differences from the paper, and from the configuration that repeats it, with groups."""
    shown = _kind_in(entry, kind)
    finetuned = len(_without_finetuning(settings)) < len(settings)
    theirs_is = "finetuned" in entry.system
    if shown in _FINETUNABLE and finetuned != theirs_is:
        both = ("finetuned", "not finetuned")
        ours, other = both if finetuned else both[::-1]
        yield "steps", f"{ours} (paper: {other})"
    if not theirs_is:
        settings = _without_finetuning(settings)
    theirs = _conf(entry, task)
    for name in sorted({*theirs, *settings}):
        group = next((group for group, of in _GROUPS.items() if re.fullmatch(of, name)), None)
        if group and settings.get(name) != theirs.get(name) and not _ASIDE.fullmatch(name):
            values = [one.get(name) for one in (settings, theirs)]
            ours, other = ("unset" if value is None else str(value) for value in values)
            yield group, f"{name.removeprefix('train.')} {ours} ({entry.conf}: {other})"
    if shown != kind:
        ours, other = (KINDS[k].title if k in _BLEU else k for k in (kind, shown))
        yield "signature", f"{ours} (paper: {other})"


def _size(entry: Published, system: ComparedSystem) -> Iterator[tuple[str, str]]:
    """Yield the difference of the numbers of parameters, where both are known."""
    parameters = system.cost("parameters")
    printed = None if "parameters" in entry.errata else entry.parameters  # a wrong one says nothing
    if parameters and printed and abs(parameters / printed - 1) > SIZES_DIFFER:
        yield "parameters", f"{parameters / 1e6:.2f} M (paper: {printed / 1e6:.2f} M)"


def _test(ours: Summary, theirs: Summary, compared: Compared) -> tuple[str, str]:
    """Return whether two numbers agree: two samples by t, one run by its prediction interval."""
    sample, single = (ours, theirs) if ours.n > 1 else (theirs, ours)
    if sample.n < 2:
        return "not comparable", "one run each: the variation over seeds is unknown"
    if not (sample.sd or single.sd > 0):
        return "not comparable", "no score varies over seeds"
    if single.n > 1:
        p = compared.test(ours, theirs).p_value
        low, high = confidence_interval(ours, theirs, compared.test.equal_variances)
        word = "agrees" if p >= compared.alpha else "differs"
        return word, (f"{ours.mean - theirs.mean:+.2f} [{low:.2f}, {high:.2f}], p = {p:.2g}")
    from scipy.stats import t

    alpha = compared.alpha
    half = float(t.ppf(1 - alpha / 2, sample.n - 1)) * sample.sd * math.sqrt(1 + 1 / sample.n)
    low, high = sample.mean - half, sample.mean + half
    word = "agrees" if low <= single.mean <= high else "differs"
    return word, f"{1 - alpha:.0%} of further runs lie in [{low:.2f}, {high:.2f}]"
