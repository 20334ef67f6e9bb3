"""Train output layers alone, on the frozen features of one trunk: `highrank race`.

Features and targets are written once. Every layer then starts from the trunk's own matrix, reads
the same tokens in an order drawn by its seed, and has the same number of updates.
"""

import copy
import itertools
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import highrank_plugins
from highrank_plugins.common.certificate import Mass
from highrank_plugins.common.files import CODE, files_digest, read_json, write_json, write_text
from highrank_plugins.common.folders import held
from highrank_plugins.common.names import Score
from highrank_plugins.common.processes import ordered_map, usable_cores
from highrank_plugins.common.provenance import typed_command
from highrank_plugins.heads import HEADS, Head, build_head, tokens
from highrank_plugins.heads.mixtures import Mixture, near_features
from highrank_plugins.heads.registry import unknown_name_message
from highrank_plugins.reports.comparisons import comparison_tables
from highrank_plugins.reports.tables import Table, brief, to_csv, to_markdown
from highrank_plugins.results.comparison import BASELINE, compare_records
from highrank_plugins.results.perplexity import UNIGRAM
from highrank_plugins.results.record import RecordedTraining, make_record
from highrank_plugins.studies import trunk as frozen
from highrank_plugins.studies.definition import RaceSettings, TriedRates
from highrank_plugins.studies.members import UNFAIR
from highrank_plugins.studies.rates import best_rate, rate_notes
from highrank_plugins.studies.trunk import ROWS, FrozenTexts, loss_of, read_trunk

RUNS = "runs"  # the folder of the records
NOISE, MOST_NATS = 0.1, 5e-3  # of a mixture: less noise leaves its components alike in a race
EXPRESSIVITY = (
    "No difference here proves nothing: the trunk was trained with {own}, and its features fit "
    "that layer. Others may gain in joint training, and a gain may shrink. To calibrate this "
    "table, train softmax and the best layer once with their trunks."
)


class RaceRun(NamedTuple):
    """Name one training run of a layer."""

    settings: RaceSettings
    layer: str
    rate: float  # multiple of --lr
    seed: int
    command: str
    user_dir: Path | None

    @property
    def file(self) -> Path:
        return self.settings.exp_dir / RUNS / f"{self.rate:g}" / f"{self.layer}-{self.seed}.json"

    @property
    def options(self) -> dict[str, Any]:
        """Return what changes its numbers, besides the features."""
        own = {"layer": self.layer, "lr": self.settings.lr * self.rate, "seed": self.seed}
        if self.user_dir is not None:
            own["user_dir"] = files_digest(self.user_dir, *CODE)
        unneeded = {"exp_dir", "layers", "rates", "jobs", "tokens"}
        return self.settings.model_dump(mode="json", exclude=unneeded) | own


def race(
    checkpoint: Path,
    data: str,
    settings: RaceSettings,
    layers: Sequence[str],
    rates: Sequence[float],
    user_dir: Path | None = None,
) -> list[Table]:
    """Dump the features, choose a rate for each layer, train all seeds; return the tables."""
    for layer in layers:
        if layer not in tokens():
            raise ValueError(f"--layers: {unknown_name_message('layer', layer, tokens())}")
    if BASELINE not in layers or len(layers) < 2:
        raise ValueError(f"--layers: name {BASELINE}, the baseline, and another layer at least")
    shown = {f"{rate:g}" for rate in rates}  # which name the records
    if not all(0 < rate < math.inf for rate in rates) or len(shown) < len(rates):
        raise ValueError(f"--rates {settings.rates}: expected different numbers above 0")
    folder, jobs = settings.exp_dir, settings.jobs or usable_cores()
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--exp-dir {folder}: a file; name a folder")
    trunk = frozen.open_trunk(checkpoint, data, settings)
    with held(folder / ".lock", f"--exp-dir {folder}", "race"):
        frozen.dump(trunk, settings)
        last = typed_command(), user_dir
        seeds = range(1, settings.seeds + 1)
        tried = [RaceRun(settings, name, rate, 1, *last) for name in layers for rate in rates]
        for one in [one._replace(seed=n) for n in seeds for one in tried]:
            if one.file.exists():  # refuses one of another race before anything is trained
                trained(one)
        found: dict[str, dict[float, float]] = {name: {} for name in layers}
        for one, loss in zip(tried, ordered_map(trained, tried, jobs), strict=True):
            found[one.layer][one.rate] = loss
        chosen = {name: best_rate(losses) for name, losses in found.items()}
        runs = [RaceRun(settings, name, chosen[name], n, *last) for n in seeds for name in layers]
        losses = dict(zip(runs, ordered_map(trained, runs, jobs), strict=True))
        tables = tables_of(settings, losses, found)
        write_text(folder / "table.md", to_markdown(brief(tables)))
        write_text(folder / "table.csv", to_csv(tables))
    return tables


def trained(run: RaceRun) -> float:
    """Train a layer unless its record is there; return its best validation loss, inf if diverged.

    The start does not count, or every rate that only harms would seem as good as another. The
    layer has one core, and may have a process of its own.
    """
    if not run.file.exists():
        if run.user_dir is not None:
            highrank_plugins.register()
            from argparse import Namespace

            from fairseq.utils import import_user_module

            import_user_module(Namespace(user_dir=str(run.user_dir)))
        torch.set_num_threads(1)
        write_json(run.file, record_of(run))
    record, trunk = read_json(run.file), read_trunk(run.settings)
    try:
        of, options, own = record["train"], record["config"]["train"], record["trunk"]
        loss = of.get("trained_valid_loss", of["best_valid_loss"])
        loss = math.inf if loss is None else float(loss)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise ValueError(f"{run.file}: not a record of a race; delete it") from None
    runs = run.settings.exp_dir / RUNS
    frozen.refuse_other(runs, run.file, options, run.options)
    frozen.refuse_other(runs, run.file, own, trunk["identity"])
    return loss


def record_of(run: RaceRun) -> dict[str, Any]:
    torch.manual_seed(run.seed)
    settings, texts = run.settings, frozen.read_texts(run.settings)
    trunk = read_trunk(settings)
    start, processor = time.perf_counter(), time.process_time()
    head, losses = train(first_layer(run, trunk, texts), texts, run)
    seconds = time.perf_counter() - start
    size, count = len(texts["train"][1]), len(texts["test"][1])
    summary = {
        "updates": settings.updates(size), "epochs": settings.epochs, "wall_seconds": seconds,
        "processor_seconds": time.process_time() - processor,
        "words_per_second": settings.epochs * size / seconds,
        "parameters": sum(p.numel() for p in head.parameters()),
        "valid_loss": losses[-1], "best_valid_loss": min(losses), "start_valid_loss": losses[0],
        "trained_valid_loss": min(losses[1:]),
    }  # fmt: skip
    if not math.isfinite(losses[-1]):
        lost = dict.fromkeys(("valid_loss", "best_valid_loss", "trained_valid_loss"))
        known = {"config": {"train": run.options}, "trunk": trunk["identity"]}
        return {"train": {**summary, **lost}, **known}
    counts = torch.bincount(texts["train"][1], minlength=head.num_classes).double() + 1
    test_loss, mass = certified_loss(head, *texts["test"])
    nats = {
        "test_perplexity": test_loss,
        "valid_perplexity": min(losses),
        UNIGRAM: -float((counts / counts.sum()).log()[texts["test"][1]].mean()),
        "trunk_test_perplexity": trunk["loss"],
    }
    signed = dict.fromkeys(nats, f"tokens:{count}|eval:static")
    signed["valid_perplexity"] = f"tokens:{len(texts['valid'][1])}|eval:static"
    signed[UNIGRAM] = f"tokens:{count}|words:{head.num_classes}"
    scores = {n: Score(round(math.exp(value), 4), signed[n]) for n, value in nats.items()}
    certified = replace(scores["test_perplexity"], certificate=mass.signed("unit:token|ctx:frozen"))
    own = {"trunk": trunk["identity"], "vocabulary": trunk["identity"]["dictionary"]}
    scores["test_perplexity"], trained = certified, RecordedTraining(run.command, summary)
    return make_record(scores, {"train": run.options}, trained, **own)


@torch.no_grad()
def certified_loss(head: Head, features: Tensor, target: Tensor) -> tuple[float, Mass]:
    """Return `loss_of` a text, and its mass; refuse a loss that is not of probabilities."""
    # losses as they are scored among many tokens, against log P of these tokens without the others
    mass, total = Mass(target, "test", features.dtype), 0.0
    head.eval()
    for start, x, y in zip(itertools.count(0, ROWS), features.split(ROWS), target.split(ROWS)):
        loss = head.nll(x, y, reduction="none").loss
        total += float(loss.double().sum())
        if places := mass.within(start, len(y)):
            mass.add(-loss[places], y[places], head(x[places]))
    return total / len(target), mass


@torch.no_grad()
def first_layer(run: RaceRun, trunk: Mapping[str, Any], texts: FrozenTexts) -> Head:
    """Return a new layer with the trunk's own matrix; a mixture's contexts begin near the features.

    Where the own matrix does not have the features' width, every layer has its usual start.
    """
    features, target = texts["train"]
    classes, width = len(trunk["weight"]), features.size(1)
    counts = torch.bincount(target, minlength=classes).tolist()
    given = {"components": run.settings.components, "frequent_ratio": 0.1, "class_counts": counts}
    known = HEADS.options(tokens()[run.layer]["head"])
    options = {name: value for name, value in given.items() if name in known}
    head, softmax = (
        build_head(name, num_classes=classes, feature_dim=width, **more)
        for name, more in ((run.layer, options), (BASELINE, {}))
    )
    if trunk["weight"].size(1) != width:
        return head
    for layer in (head, softmax):
        layer.weight.copy_(trunk["weight"])
        if trunk["bias"] is not None and layer.bias is not None:
            layer.bias.copy_(trunk["bias"])
    if isinstance(head, Mixture):
        some = features[:ROWS], target[:ROWS]
        most = loss_of(softmax, *some) + MOST_NATS
        for _ in near_features(head, float(some[0].abs().max()), NOISE):
            if loss_of(head, *some) <= most:
                break
    return head


def train(head: Head, texts: FrozenTexts, run: RaceRun) -> tuple[Head, list[float]]:
    """Train with Adam at a rate that falls to 0; return the best layer and all validation losses.

    The layer is validated before the first update and after each epoch. Training ends early at a
    loss that is not finite.
    """
    settings, (features, target) = run.settings, texts["train"]
    steps = settings.updates(len(target))
    optimizer = torch.optim.Adam(head.parameters(), settings.lr * run.rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: 1 - done / steps)
    best, losses = copy.deepcopy(head), [loss_of(head, *texts["valid"])]
    for _ in range(settings.epochs):
        for rows in torch.randperm(len(target)).split(settings.batch):
            optimizer.zero_grad()
            head.nll(features[rows], target[rows], reduction="mean").loss.backward()
            optimizer.step()
            schedule.step()
        losses.append(loss_of(head, *texts["valid"]))
        if not math.isfinite(losses[-1]):
            break
        if losses[-1] == min(losses):
            best = copy.deepcopy(head)
    return best, losses


def tables_of(
    settings: RaceSettings, losses: Mapping[RaceRun, float], rates: TriedRates
) -> list[Table]:
    diverged = [run for run, loss in losses.items() if not math.isfinite(loss)]
    untested = {run.layer: UNFAIR for run in diverged}
    records = [run.file for run in losses if run not in diverged]
    if BASELINE in untested:
        raise ValueError(f"{BASELINE}, the baseline, diverges; lower --lr or --rates")
    compared = compare_records(records, "test_perplexity", BASELINE, untested=untested)
    first = compared.systems[0].runs[0].record
    own = read_trunk(settings)["layer"]
    lost = ", ".join(f"{run.layer}-{run.seed}" for run in diverged)
    notes = [
        *[f"Diverged: {lost}."] * bool(lost),
        f"Only the layers were trained, for {first['train']['updates']:,} updates each, on frozen "
        f"features. The trunk's own layer has {first['metrics']['trunk_test_perplexity']:.2f} on "
        "these tokens. Seeds vary start and order, not the trunk: the tests hold for it alone.",
        *rate_notes(rates, f"{settings.lr:g}"),
        EXPRESSIVITY.format(own=own),
    ]
    return comparison_tables(replace(compared, notes=[*compared.notes, *notes]))
