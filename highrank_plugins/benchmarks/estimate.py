"""Estimate whole training runs, from one measured step of each model."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from highrank_plugins.benchmarks.case import CaseError, ModelCase, TimingSettings, changed
from highrank_plugins.benchmarks.measuring import MeasurementFailed
from highrank_plugins.benchmarks.run import measure
from highrank_plugins.common import formatting
from highrank_plugins.common.blocks import option
from highrank_plugins.training.command_line import words_of
from highrank_plugins.training.configuration import Configuration
from highrank_plugins.training.launch.plan import fit_batch

SENTENCE = 26  # pieces in a sentence of WMT


class EstimateSettings(TimingSettings):
    """Say how whole training runs are measured and priced: `highrank bench estimate`."""

    devices: int = option(1, "Number of devices to train on.", ge=1)
    efficiency: float = option(1.0, "Share of speed that each of several keeps.", ge=0.01, le=1)
    price: float | None = option(None, "Price of a device per hour, in any currency.", ge=0)
    batch: int | None = option(None, "Tokens of the measured step (default: max_tokens).", ge=1)


@dataclass(frozen=True)
class Training:
    """Describe the training run of a translator.

    `case` is a step of one device, `has_own_batch` whether with the batch of the run, as
    `highrank launch` sets it; `tokens` counts an update on all devices.
    """

    arch: str
    case: ModelCase
    has_own_batch: bool
    updates: int
    tokens: int

    @classmethod
    def of(cls, name: str, configuration: Configuration, settings: EstimateSettings) -> Training:
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
            max_tokens, freq = fit_batch(int(wanted), max_tokens, settings.devices)
        batch = settings.batch or max_tokens
        case = ModelCase(
            classes=configuration.data.vocab_size,
            sentences=max(1, batch // SENTENCE),
            length=SENTENCE,
            shape=shlex.join(words_of(options)),
            user_dir=None if user_dir is None else str(user_dir),
        )
        updates, tokens = _count(name, options, "max_update"), max_tokens * freq * settings.devices
        return cls(arch, case, batch == max_tokens, updates, tokens)

    def row(
        self, name: str, parameters: int, speed: float, memory: int | None,
        settings: EstimateSettings,
    ) -> list[str]:  # fmt: skip
        """Return a line of the table; `speed` is that of one device in tokens a second.

        `memory` are the bytes of weights, gradients, Adam's moments and activations, if known.
        """
        # of all devices together
        hours = self.updates * self.tokens / (speed * settings.efficiency) / 3600
        cost = [] if settings.price is None else [f"{hours * settings.price:,.0f}"]
        return [
            name, f"{parameters / 1e6:,.1f} M", formatting.short(speed),
            "-" if memory is None else f"{memory / 2**30:,.1f}",
            f"{self.updates:,}", f"{self.tokens:,}", f"{hours:,.1f}",
            f"{hours / settings.devices:,.1f}", *cost,
        ]  # fmt: skip


def run_estimates(
    configurations: Mapping[str, Configuration], settings: EstimateSettings,
    echo: Callable[[str], None],
) -> int:  # fmt: skip
    """Measure a step of each training run, and print a table; return how many failed."""
    import torch

    from highrank_plugins.benchmarks.models import parameters

    changes, rows, machine = settings.changes(), [], ""
    trainings = {name: Training.of(name, of, settings) for name, of in configurations.items()}
    for name, training in trainings.items():
        case = changed(training.case, changes)
        assert isinstance(case, ModelCase)
        try:
            found = measure("train", case, training.arch, settings.repeats, settings.threads)
        except MeasurementFailed as error:
            echo(f"{name}: failed: {error}")
            continue
        count, memory, machine = parameters(training.arch, case), found["memory"], found["machine"]
        if memory is not None:
            weights = count * getattr(torch, case.dtype).itemsize
            memory = memory + weights if training.has_own_batch else None
        speed = case.work() / median(found["seconds"])
        rows.append(training.row(name, count, speed, memory, settings))
        echo(f"{name}: {formatting.short(speed)} tokens/s")
    if not rows:
        raise CaseError("nothing could be measured; see the reasons above")
    heading = ["configuration", "parameters", "tokens/s", "GiB", "updates", "tokens per update"]
    heading += ["device hours", f"hours on {settings.devices}"]
    heading += [] if settings.price is None else ["cost"]
    echo(f"\n{machine}\n\n{formatting.table(heading, rows)}".rstrip())
    return len(trainings) - len(rows)


def _count(name: str, options: dict[str, Any], key: str) -> int:
    value = options.get(key)
    if not isinstance(value, int) or value < 1:
        raise CaseError(f"{name}: train.{key} must be a number of at least 1; try --set {key}=N")
    return value
