"""Log measures of a head during training, for ``--head-monitor``: lines and TensorBoard."""

import logging
from collections import deque
from typing import Optional

import torch
from fairseq.logging import metrics
from fairseq.logging.progress_bar import SummaryWriter
from torch import Tensor

from highrank_plugins.common.heartbeat import TrainingListener
from highrank_plugins.heads import Head
from highrank_plugins.measures import all_measures
from highrank_plugins.measures.base import MonitoredBatch, Snapshot

logger = logging.getLogger(__name__)

LAST_IN_LINE = 2000  # fairseq's own numbers end at 1600
SHARE = 0.01  # fraction of 1/K below which a component has collapsed
WINDOW = 10  # number of batches in a window


class HeadMonitor(TrainingListener):
    """Measure a head on the first batch of each update that ``interval`` divides."""

    def __init__(self, head: Head, interval: int) -> None:
        self.head, self.interval = head, interval
        self.latest: dict[str, float] = {}
        self._due = self._seen = self._warned = False
        self._snapshot: Optional[Snapshot] = None
        self._collapse = CollapseWatch()
        self._events: Optional[SummaryWriter] = None

    def before_update(self, updates: int) -> None:
        self._due = (updates + 1) % self.interval == 0
        self._seen, self._snapshot = False, None

    def see(self, features: Tensor, target: Tensor, ignore_index: Optional[int]) -> None:
        """Receive a batch of any shape that is about to be scored."""
        if self._due and not self._seen:
            self._seen = True
            self._measure(features, target, ignore_index)

    def after_update(self, updates: int, logdir: Optional[str]) -> None:
        due, self._due = self._due, False
        if not due or updates % self.interval:  # no update if the gradients overflowed
            return
        if not self._seen:
            if not self._warned:
                logger.warning(
                    "--head-monitor sees neither features nor targets with this criterion, so "
                    "that components, gates and gradients are not measured; use --criterion "
                    "highrank_cross_entropy or bptt_cross_entropy"
                )
            self._warned = True
            self._measure()
        if self._snapshot is not None:
            self._show(self._snapshot, updates, logdir)

    def _measure(self, *batch) -> None:
        try:
            self._snapshot = take_snapshot(self.head, *batch)
        except ValueError as error:  # the run may recover, because fp16 lowers its loss scale
            logger.warning("--head-monitor: could not measure this update: %s", error)

    def _show(self, snapshot: Snapshot, updates: int, logdir: Optional[str]) -> None:
        self.latest |= {f"head_{n}": of for n, of in snapshot.items() if isinstance(of, float)}
        with metrics.aggregate("train"):
            for name in self.latest:
                # derived meters cost nothing until a line is printed, and stay out of checkpoints
                metrics.log_derived(name, lambda _, name=name: self.latest[name], LAST_IN_LINE)
        if logdir and SummaryWriter is not None:
            self._write(snapshot, updates, logdir)
        use = snapshot.get("component_use")
        if isinstance(use, Tensor) and (collapsed := self._collapse.see(use)):
            logger.warning(
                "--head-monitor: at update %d components %s of %d (from 0) have collapsed: their "
                "weight is below 1%% of an equal share. Use fewer (--head-components), or start "
                "again with a lower --lr, more --warmup-updates or another --seed",
                *(updates, ", ".join(map(str, collapsed)), self.head.components),
            )

    def _write(self, snapshot: Snapshot, updates: int, logdir: str) -> None:
        """Write to ``logdir/head``, next to fairseq's ``train_inner``, ``train`` and ``valid``."""
        # makes TensorBoard hide an interrupted training run's events after this update
        self._events = events = self._events or SummaryWriter(f"{logdir}/head", purge_step=updates)
        for name, value in snapshot.items():
            if name == "component_use":
                for k, share in enumerate(value.tolist()):
                    events.add_scalar(f"head_{name}/{k:02}", share, updates)
                continue
            add = events.add_scalar if isinstance(value, float) else events.add_histogram
            add(f"head_{name}", value, updates)
        events.flush()


@torch.no_grad()
def take_snapshot(
    head: Head, features: Optional[Tensor] = None, target: Optional[Tensor] = None,
    ignore_index: Optional[int] = None,
) -> Snapshot:  # fmt: skip
    """Return the numbers of all registered measures for a head in training, and a batch if given.

    It draws no random number and changes neither parameters nor their gradients, nor the graph of
    the features [..., F]. Dropout and noise of the head are off.
    """
    for name, parameter in head.named_parameters():
        if not parameter.isfinite().all():
            raise ValueError(f"{name} of the head is not finite")
    batch = MonitoredBatch(head)
    if features is not None and target is not None:
        # the tokens that count, in the head's dtype
        flat, words = features.reshape(-1, features.size(-1)), target.reshape(-1)
        if ignore_index is not None:
            flat, words = flat[words != ignore_index], words[words != ignore_index]
        flat = flat.to(head.weight.dtype)
        if not flat.isfinite().all():
            raise ValueError("a feature is not finite")
        batch = MonitoredBatch(head, flat, words) if len(flat) else batch
    # half precision under autocast would lose digits
    snapshot: Snapshot = {}
    with torch.autocast(head.weight.device.type, enabled=False):
        for measure in all_measures().values():
            snapshot |= measure.monitor(batch)
    return snapshot


class CollapseWatch:
    """Report components whose mean weight over a window of batches is below 1 % of 1/K.

    Reports begin when the window is full. A component is reported once, until it has recovered.
    """

    def __init__(self, window: int = WINDOW) -> None:
        self._recent: deque[Tensor] = deque(maxlen=window)
        self._collapsed: set[int] = set()

    def see(self, use: Tensor) -> list[int]:
        """Return the components that have collapsed since the last batch, of mean weights [K]."""
        self._recent.append(use)
        if len(self._recent) < (self._recent.maxlen or 1):
            return []
        mean = torch.stack(list(self._recent)).mean(0)
        collapsed = set((mean < SHARE / len(mean)).nonzero().flatten().tolist())
        new = collapsed - self._collapsed
        self._collapsed = collapsed
        return sorted(new)
