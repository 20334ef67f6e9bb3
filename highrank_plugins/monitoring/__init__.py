"""What a head tells about itself while it trains. Pure torch."""

from .collapse import CollapseWatch
from .snapshot import Snapshot, take_snapshot

__all__ = ["CollapseWatch", "Snapshot", "take_snapshot"]
