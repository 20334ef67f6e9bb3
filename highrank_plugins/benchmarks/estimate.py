"""Estimate whole training runs, from one measured step of each model."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from highrank_plugins.benchmarks.case import CaseError, ModelCase, changed
from highrank_plugins.benchmarks.measuring import MeasurementFailed
from highrank_plugins.benchmarks.run import measure
from highrank_plugins.common import formatting
from highrank_plugins.training.command_line import words_of
from highrank_plugins.training.configuration import Configuration
from highrank_plugins.training.launch.plan import fit_batch

SENTENCE = 26  # pieces in a sentence of WMT


@dataclass(frozen=True)
class Training:
    """Describe the training run of a translator; `tokens` counts an update on all devices.

    `max_tokens` is the batch of one device, as `highrank launch` sets it.
    """

    name: str
    arch: str
    options: str  # further options of fairseq-train, quoted for a shell
    classes: int
    max_tokens: int
    updates: int
    tokens: int
    user_dir: str | None = None

    @classmethod
    def of(cls, name: str, configuration: Configuration, devices: int) -> Training:
        """Read a training run from a configuration."""
        if configuration.data is None:
            raise CaseError(
                f"{name}: the configuration has no block `data`; only translation models can "
                "be estimated"
            )
        options = {"update_freq": 1, **configuration.train}
        arch, user_dir = options.pop("arch", None), options.pop("user_dir", None)
        if arch is None:
            raise CaseError(f"{name}: train.arch is missing; try --set arch=transformer_softmax")
        max_tokens = _count(name, options, "max_tokens")
        freq = _count(name, options, "update_freq")
        if (wanted := configuration.launch.get("effective_tokens")) is not None:
            max_tokens, freq = fit_batch(int(wanted), max_tokens, devices)
        return cls(
            name=name,
            arch=arch,
            options=shlex.join(words_of(options)),
            classes=configuration.data.vocab_size,
            max_tokens=max_tokens,
            updates=_count(name, options, "max_update"),
            tokens=devices * max_tokens * freq,
            user_dir=None if user_dir is None else str(user_dir),
        )

    def case(self, batch: int | None) -> ModelCase:
        """Return one batch of it, of `batch` tokens if given."""
        sentences = max(1, (batch or self.max_tokens) // SENTENCE)
        return ModelCase(
            classes=self.classes,
            sentences=sentences,
            length=SENTENCE,
            shape=self.options,
            user_dir=self.user_dir,
        )


@dataclass(frozen=True)
class CostEstimate:
    """Estimate a training run with the speed of one device."""

    training: Training
    parameters: int
    tokens_per_second: float
    # bytes of weights, gradients, Adam's moments and activations; None where it cannot be read, or
    # where a batch of another size was measured
    memory: int | None
    machine: str

    def device_hours(self, efficiency: float) -> float:
        """Return the total hours of all devices, each at `efficiency` of its speed alone."""
        tokens = self.training.updates * self.training.tokens
        return tokens / (self.tokens_per_second * efficiency) / 3600


def run_estimates(
    trainings: list[Training],
    batch: int | None,
    changes: Mapping[str, Any],
    repeats: int,
    threads: int,
    *,
    echo: Callable[[str], None],
) -> list[CostEstimate]:
    """Measure a step of each training run, of `batch` tokens if given; print and skip failures."""
    import torch

    from highrank_plugins.benchmarks.models import parameters

    cases = {training: changed(training.case(batch), dict(changes)) for training in trainings}
    estimates = []
    for training, case in cases.items():
        assert isinstance(case, ModelCase)
        try:
            found = measure("train", case, training.arch, repeats, threads)
        except MeasurementFailed as error:
            echo(f"{training.name}: failed: {error}")
            continue
        count, memory = parameters(training.arch, case), found["memory"]
        if memory is not None:
            weights = count * getattr(torch, case.dtype).itemsize
            memory = memory + weights if batch in (None, training.max_tokens) else None
        speed = case.work() / median(found["seconds"])
        estimates.append(CostEstimate(training, count, speed, memory, found["machine"]))
        echo(f"{training.name}: {formatting.short(speed)} tokens/s")
    if not estimates:
        raise CaseError("nothing could be measured; see the reasons above")
    return estimates


def estimates_table(
    estimates: list[CostEstimate], devices: int, efficiency: float, price: float | None
) -> str:
    """Return Markdown, one line per training; without a price of an hour, it has no costs."""
    heading = ["configuration", "parameters", "tokens/s", "GiB", "updates", "tokens per update"]
    heading += ["device hours", f"hours on {devices}", *(["cost"] if price is not None else [])]
    rows = []
    for each in estimates:
        hours = each.device_hours(efficiency)
        cells = [
            each.training.name,
            f"{each.parameters / 1e6:,.1f} M",
            formatting.short(each.tokens_per_second),
            "-" if each.memory is None else f"{each.memory / 2**30:,.1f}",
            f"{each.training.updates:,}",
            f"{each.training.tokens:,}",
            f"{hours:,.1f}",
            f"{hours / devices:,.1f}",
            *([f"{hours * price:,.0f}"] if price is not None else []),
        ]
        rows.append(cells)
    return formatting.table(heading, rows)


def _count(name: str, options: dict[str, Any], key: str) -> int:
    value = options.get(key)
    if not isinstance(value, int) or value < 1:
        raise CaseError(f"{name}: train.{key} must be a number of at least 1; try --set {key}=N")
    return value
