"""Save the progress of a long evaluation, segment by segment, so that it resumes after a kill."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fairseq import checkpoint_utils
from tqdm import tqdm

from highrank_plugins.analysis.predictions import perplexity_of
from highrank_plugins.common.checkpoint_file import read_checkpoint
from highrank_plugins.common.formatting import bar_options
from highrank_plugins.inference.streaming_model import FairseqBatch, Segments

START: dict[str, Any] = {
    "position": 0, "nll": [], "tokens": 0, "state": None, "extra_state": None, "mass": ()
}  # fmt: skip


class SavedProgress:
    """Keep a dictionary `progress` in a file of the evaluation that has an `identity`."""

    def __init__(self, path: Path, identity: dict[str, Any], seconds: float) -> None:
        self.path, self.identity, self.seconds = path, identity, seconds
        self.progress: dict[str, Any] = {}
        self.saved_at = time.monotonic()
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
        self.saved_at = time.monotonic()

    def remove(self) -> None:
        """Delete the file: the evaluation is over."""
        self.path.unlink(missing_ok=True)


class Walk:
    """Yield the segments that an earlier process has not evaluated, and keep the results.

    `done` holds `nll` (sums in nats) and the worst `mass`, by each of the models; `tokens` and
    `position`, the number of segments, so far. The next segment needs the recurrent `state` and the
    tensors of `extra_state`, which are None at the start.
    """

    def __init__(self, saved: SavedProgress, name: str, segments: Segments) -> None:
        self.saved, self.name, self.segments = saved, name, segments
        self.done = saved.progress[name] = START | saved.progress.get(name, {})

    def __iter__(self) -> Iterator[FairseqBatch]:
        first, total = self.done["position"], len(self.segments.chunks)
        more = bar_options() | {"initial": first, "unit": "segment"}
        with tqdm(None, self.name, total, **more) as self.bar:
            yield from self.segments.starting_at(first)

    def add(self, nll: list[float], tokens: int, **after: Any) -> None:
        """Add the result of a segment, with what is known after it; save it if it is time."""
        before = self.done["nll"] if self.done["position"] else [0.0] * len(nll)
        self.done |= {
            "nll": [a + b for a, b in zip(before, nll, strict=True)],
            "tokens": self.done["tokens"] + tokens,
            "position": self.done["position"] + 1,
            **after,
        }
        if time.monotonic() - self.saved.saved_at >= self.saved.seconds:
            self.saved.save()
        self.bar.set_postfix(ppl=f"{self.perplexity:.2f}", refresh=False)
        self.bar.update()

    def end(self) -> None:
        """Save the result without states."""
        self.done |= {"state": None, "extra_state": None}
        self.saved.save()

    @property
    def perplexity(self) -> float:
        """Return the perplexity of the best of the models, so far."""
        return perplexity_of(min(self.done["nll"]) / self.done["tokens"])
