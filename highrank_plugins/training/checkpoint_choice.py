"""Choose the checkpoints of a training run to average."""

import math
import re
from dataclasses import dataclass
from pathlib import Path

from highrank_plugins.training.checkpoint_file import common_sign, look_up

# names of checkpoints: of an epoch, of an update, and the newest
_IN_ORDER = re.compile(r"checkpoint(?:\d+|_\d+_(\d+)|_last)\.pt")
# those, and the best checkpoints, also by --keep-best-checkpoints
_ANY = re.compile(r"checkpoint(?:\d+|_\d+_(\d+)|_last|_best|\.best_.+)\.pt")


@dataclass(frozen=True)
class Updates:
    """Hold the first and the last number of updates, both included."""

    first: int = 0
    last: float = math.inf

    def __contains__(self, number: int) -> bool:
        return self.first <= number <= self.last

    def __str__(self) -> str:
        if self == Updates():
            return ""
        return f" from update {self.first}" + (f" to {self.last}" if self.last < math.inf else "")


def last_checkpoints(
    directory: Path, count: int | None, updates: Updates | None = None
) -> list[Path]:
    """Return the `count` checkpoints of `directory` with the most updates, in training order.

    These are `checkpoint<epoch>.pt`, `checkpoint_<epoch>_<updates>.pt` and `checkpoint_last.pt`.
    Several with the same number of updates, which are copies, count once.

    Args:
        count: None means all.
    """
    updates = updates or Updates()
    found = _found(directory, _IN_ORDER, updates)
    count = _check_enough(directory, len(found), count, f"of different updates{updates}")
    return [found[number] for number in sorted(found)[len(found) - count :]]


def best_checkpoints(directory: Path, count: int, updates: Updates | None = None) -> list[Path]:
    """Return the `count` checkpoints with the best validation score, in training order.

    The score is the one that fairseq stored with each (`--best-checkpoint-metric`, the loss by
    default); checkpoints without a finite score do not count, nor do copies.
    """
    updates = updates or Updates()
    found = _found(directory, _ANY, updates)
    scores = {
        number: float(score)
        for number, path in found.items()
        if (score := look_up(path, "extra_state").get("val_loss")) is not None
        and math.isfinite(score)
    }
    _check_enough(directory, len(scores), count, f"with a validation score{updates}")
    sign = common_sign([found[number] for number in scores])
    best = sorted(scores, key=lambda number: (-sign * scores[number], -number))[:count]
    return [found[number] for number in sorted(best)]


def _found(directory: Path, pattern: re.Pattern[str], updates: Updates) -> dict[int, Path]:
    if not directory.is_dir():
        raise ValueError(f"{directory}: no such folder")
    found: dict[int, Path] = {}
    for path in sorted(directory.glob("*.pt")):  # sorts checkpoint_last.pt after numbered ones
        match = pattern.fullmatch(path.name)
        if match:
            found.setdefault(int(match[1]) if match[1] else _updates(path), path)
    return {number: path for number, path in found.items() if number in updates}


def _updates(path: Path) -> int:
    return int(look_up(path, "optimizer_history", -1, "num_updates"))


def _check_enough(directory: Path, found: int, count: int | None, which: str) -> int:
    wanted = max(found, 1) if count is None else count
    if found < wanted:
        raise ValueError(
            f"{directory}: found {found} of {wanted} checkpoints {which} to average. Train "
            "longer, save more often (--save-interval-updates), keep more (--keep-last-epochs), "
            "average fewer (--last, --best), or widen the range (--from-update, --to-update)"
        )
    return wanted
