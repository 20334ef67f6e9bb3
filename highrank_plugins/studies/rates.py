"""Choose each system's learning rate by trials at multiples of its own, before its seeds run."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from highrank_plugins.results.record import load_record
from highrank_plugins.studies.definition import Study, TriedRates, first_seeds
from highrank_plugins.studies.members import DIVERGED, PreparedMember, prepare

NOT_TUNED = "Each system has one learning rate: not tuned."


def trials_of(study: Study, exp_dir: Path) -> list[PreparedMember]:
    """Return the trials of a study: the first seed of each tuned system at each multiple of lr.

    A system that takes the rate of another one has none, nor has a study without `rates`.
    """
    short = study.settings.rates_set
    members = [
        replace(first, system=trial_name(first.system, rate), changes={**first.changes, **short},
                rate=rate)
        for first in first_seeds(study.members, 1)
        if study.tuned_by.get(first.system, first.system) == first.system
        for rate in study.settings.rates
    ]  # fmt: skip
    return prepare(replace(study, members=members), exp_dir)


def trial_name(system: str, rate: float) -> str:
    """Return the name of the trials of a system at a multiple of its learning rate."""
    return f"{system}_rate{rate:g}"


def untried(trials: Sequence[PreparedMember]) -> list[PreparedMember]:
    """Return the trials that have no result; to diverge is one."""
    return [one for one in trials if one.problem() not in (None, DIVERGED)]


def tuned(study: Study, trials: Sequence[PreparedMember]) -> Study:
    """Return the study with the best rate of each system, by the loss on the validation text.

    Without trials it is the study itself.
    """
    if not trials:
        return study
    if waiting := untried(trials):
        raise ValueError(
            f"{waiting[0].name}: {waiting[0].problem()}; rates are chosen when all trials are "
            f"done, and {len(waiting)} of {len(trials)} are not; run the study to try them"
        )
    losses = {one.system: _loss(one) for one in trials}
    names = {study.tuned_by.get(one.system, one.system) for one in study.members}
    rates: TriedRates = {
        name: {rate: losses[trial_name(name, rate)] for rate in study.settings.rates}
        for name in dict.fromkeys(one.system for one in study.members)
        if name in names
    }
    members = [
        replace(one, rate=best_rate(rates[study.tuned_by.get(one.system, one.system)]))
        for one in study.members
    ]
    return replace(study, members=members, rates=rates)


def _loss(trial: PreparedMember) -> float:
    """Return a trial's best validation loss in nats, of fairseq's bits; inf if it diverged."""
    if trial.problem() == DIVERGED:
        return math.inf
    found = load_record(trial.record).get("train", {}).get("best_valid_loss")
    if found is None:
        raise ValueError(f"{trial.record}: no validation loss, by which `rates` chooses")
    return float(found) * math.log(2)


def best_rate(losses: Mapping[float, float]) -> float:
    """Return the multiple with the lowest loss, the nearest to 1 of equal ones."""
    return min(losses, key=lambda rate: (losses[rate], abs(math.log(rate))))


def rate_notes(rates: TriedRates, unit: str) -> Iterator[str]:
    """Yield which multiples of `unit` were chosen, and how much a wrong one costs each system.

    The sensitivity is the mean of the loss above that of the best rate, as in Wortsman et al. 2023
    (arXiv 2309.14322), over the rates that did not diverge.
    """
    if len({rate for losses in rates.values() for rate in losses}) < 2:
        yield NOT_TUNED
        return
    said, ends = [], []
    for system, losses in rates.items():
        finite = [loss for loss in losses.values() if math.isfinite(loss)]
        lost = [f"diverged at {rate:g}" for rate in losses if not math.isfinite(losses[rate])]
        excess = [f"{max(0.0, sum(finite) / len(finite) - min(finite)):.3f}"] if finite else []
        said.append(f"{system} {best_rate(losses):g} ({', '.join(excess + lost)})")
        if finite and best_rate(losses) in (min(losses), max(losses)):
            ends.append(system)
    yield (
        f"Best of the rates {', '.join(f'{rate:g}' for rate in losses)}, times {unit}, with the "
        f"sensitivity (mean excess of the validation loss over these rates, nats): "
        f"{', '.join(said)}."
    )
    if ends:
        yield f"At an end of the rates, so that wider ones may help: {', '.join(ends)}."
