"""Log measures of a head during training, for ``--head-monitor``: lines and TensorBoard."""

import logging
from typing import Optional

from fairseq.logging import metrics
from fairseq.logging.progress_bar import SummaryWriter
from torch import Tensor

from highrank_plugins.common.training_listener import TrainingListener
from highrank_plugins.heads import Head
from highrank_plugins.monitoring import CollapseWatch, Snapshot, take_snapshot

logger = logging.getLogger(__name__)

LAST_IN_LINE = 2000  # fairseq's own numbers end at 1600


class HeadMonitor(TrainingListener):
    """Measure a head at every update whose number is a multiple of ``interval``.

    It measures the first batch of the update that the criterion passes to the model with its
    targets, before the backward pass. In other updates it only counts.

    Args:
        head: to be measured.
        interval: in updates.
    """

    def __init__(self, head: Head, interval: int) -> None:
        self.head, self.interval = head, interval
        self.latest: dict[str, float] = {}
        self._due = self._seen = False
        self._warned = False
        self._snapshot: Optional[Snapshot] = None
        self._collapse = CollapseWatch()
        self._events: Optional[_EventFile] = None

    def before_update(self, updates: int) -> None:
        """Decide whether to measure the next update."""
        self._due = (updates + 1) % self.interval == 0
        self._seen, self._snapshot = False, None

    def see(self, features: Tensor, target: Tensor, ignore_index: Optional[int]) -> None:
        """Receive a batch of any shape that is about to be scored."""
        if self._due and not self._seen:
            self._seen = True
            self._measure(features, target, ignore_index)

    def after_update(self, updates: int, logdir: Optional[str]) -> None:
        """Show what was measured, once."""
        due, self._due = self._due, False
        if not due or updates % self.interval:  # no update if the gradients overflowed
            return
        if not self._seen:
            self._warn_of_criterion()
            self._measure()
        if self._snapshot is not None:
            self._show(self._snapshot, updates, logdir)

    def _measure(self, *batch) -> None:
        try:
            self._snapshot = take_snapshot(self.head, *batch)
        except ValueError as error:  # the run may recover, because fp16 lowers its loss scale
            logger.warning("--head-monitor: could not measure this update: %s", error)

    def _warn_of_criterion(self) -> None:
        if not self._warned:
            logger.warning(
                "--head-monitor sees neither features nor targets with this criterion, so that "
                "components, gates and gradients are not measured; use --criterion "
                "highrank_cross_entropy or bptt_cross_entropy"
            )
        self._warned = True

    def _show(self, snapshot: Snapshot, updates: int, logdir: Optional[str]) -> None:
        self.latest |= {f"head_{name}": value for name, value in snapshot.scalars.items()}
        with metrics.aggregate("train"):
            for name in self.latest:
                # derived meters cost nothing until a line is printed, and stay out of checkpoints
                metrics.log_derived(name, lambda _, name=name: self.latest[name], LAST_IN_LINE)
        if logdir and SummaryWriter is not None:
            self._events = self._events or _EventFile(logdir, updates)
            self._events.write(snapshot, updates)
        if snapshot.component_use is not None:
            self._warn_of_collapse(self._collapse.see(snapshot.component_use), updates)

    def _warn_of_collapse(self, components: list[int], updates: int) -> None:
        if components:
            logger.warning(
                "--head-monitor: at update %d components %s of %d (from 0) have collapsed: their "
                "weight is below 1%% of an equal share. Use fewer (--head-components), or start "
                "again with a lower --lr, more --warmup-updates or another --seed",
                updates,
                ", ".join(map(str, components)),
                self.head.components,
            )


class _EventFile:
    """Write to ``logdir/head``, next to fairseq's ``train_inner``, ``train`` and ``valid``."""

    def __init__(self, logdir: str, first: int) -> None:
        # makes TensorBoard hide an interrupted training run's events after this update
        self._writer = SummaryWriter(f"{logdir}/head", purge_step=first)

    def write(self, snapshot: Snapshot, updates: int) -> None:
        """Write all of a snapshot to disk at once."""
        for name, value in snapshot.scalars.items():
            self._writer.add_scalar(f"head_{name}", value, updates)
        for name, values in snapshot.histograms.items():
            self._writer.add_histogram(f"head_{name}", values, updates)
        if snapshot.component_use is not None:
            for k, share in enumerate(snapshot.component_use.tolist()):
                self._writer.add_scalar(f"head_component_use/{k:02}", share, updates)
        self._writer.flush()
