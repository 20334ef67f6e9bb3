"""Batches of streams for fairseq's scorer, which knows of no state."""

from collections.abc import Iterable, Iterator


class StateByModel:
    """States at the end of the last batch, of each model that scores. Not a dict: fairseq copies
    dicts on their way to a GPU."""

    def __init__(self) -> None:
        self.states: dict = {}


class ScoredStreams:
    """`batches` with one `StateByModel` in all of them, at `net_input["carried"]`.

    `TargetScores` reads and renews it. The first batch begins without.
    """

    def __init__(self, batches: Iterable[dict]) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[dict]:
        carried = StateByModel()
        for batch in self.batches:
            batch["net_input"]["carried"] = carried
            yield batch
