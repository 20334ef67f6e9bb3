"""Save the progress of a long evaluation, segment by segment, so that it resumes after a kill."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fairseq import checkpoint_utils
from tqdm import tqdm

from highrank_plugins.analysis.predictions import perplexity_of
from highrank_plugins.common.checkpoint_file import read_checkpoint
from highrank_plugins.inference.streaming_model import FairseqBatch, Segments

START: dict[str, Any] = {"position": 0, "nll": [], "tokens": 0, "state": None, "extra_state": None}


class SegmentResult(NamedTuple):
    """Hold the result of one segment, and what the next one needs."""

    nll: list[float]  # sums over the segment in nats, by each of the models
    tokens: int
    state: Any  # the recurrent one after the segment, nested lists of tensors
    extra_state: Any  # any other tensors that the next segment needs
    mass: Sequence[float] = ()  # worst so far of each of the models, see `Mass`


# (remaining segments, state and extra state before them) → a result after each segment
Begin = Callable[[Iterator[FairseqBatch], Any, Any], Iterator[SegmentResult]]


class SavedProgress:
    """Keep a dictionary `progress` in a file of the evaluation that has an `identity`."""

    def __init__(self, path: Path, identity: dict[str, Any], seconds: float) -> None:
        self.path, self.identity, self.seconds = path, identity, seconds
        self.progress: dict[str, Any] = {}
        self._saved_at = time.monotonic()
        if not path.exists():
            return
        before, self.progress = (
            read_checkpoint(path, name, whole=True) for name in ("identity", "progress")
        )
        if changes := "; ".join(
            f"{name}: {before.get(name)} there, {identity.get(name)} now"
            for name in dict.fromkeys([*before, *identity])
            if before.get(name) != identity.get(name)
        ):
            raise ValueError(
                f"{path} is the progress of another evaluation ({changes}). Resume that one, "
                f"name another file by --state, or delete this one"
            )

    def save(self) -> None:
        """Write the file, all or nothing: a kill leaves the old one or the new one."""
        stored = {"identity": self.identity, "progress": self.progress}
        checkpoint_utils.torch_persistent_save(stored, str(self.path))
        self._saved_at = time.monotonic()

    def remove(self) -> None:
        """Delete the file: the evaluation is over."""
        self.path.unlink(missing_ok=True)

    def evaluate(self, name: str, segments: Segments, begin: Begin) -> dict[str, Any]:
        """Evaluate all segments that an earlier process has not evaluated.

        `begin` is called once; both states are None at the start of the text. The result is kept
        under `name`: `nll` (sums) and `tokens` of the text so far, and the last `state`,
        `extra_state`, `mass` and `position` (number of segments).
        """
        progress = self.progress.get(name, START)
        start = progress["position"]
        steps = begin(segments.starting_at(start), progress["state"], progress["extra_state"])
        interval = 0.5 if sys.stderr.isatty() else 30  # seconds; a log needs fewer lines
        total = len(segments.chunks)
        with tqdm(None, name, total, initial=start, unit="segment", mininterval=interval) as bar:
            for step in steps:
                before = progress["nll"] or [0.0] * len(step.nll)
                self.progress[name] = progress = step._asdict() | {
                    "position": progress["position"] + 1,
                    "nll": [a + b for a, b in zip(before, step.nll, strict=True)],
                    "tokens": progress["tokens"] + step.tokens,
                }
                if time.monotonic() - self._saved_at >= self.seconds:
                    self.save()
                bar.set_postfix(ppl=f"{perplexity(progress):.2f}", refresh=False)
                bar.update()
        return progress


def perplexity(progress: dict[str, Any]) -> float:
    """Return the perplexity of the best of the models, so far."""
    return perplexity_of(min(progress["nll"]) / progress["tokens"])
