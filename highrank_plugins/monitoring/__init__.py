"""Measure a head while it trains. It needs torch only."""

from highrank_plugins.measures.base import Snapshot
from highrank_plugins.monitoring.collapse import CollapseWatch
from highrank_plugins.monitoring.snapshot import take_snapshot

__all__ = ["CollapseWatch", "Snapshot", "take_snapshot"]
