"""Hold what dynamic evaluation and the cache share: options, progress and records."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import highrank_plugins
from highrank_plugins.common.files import write_json
from highrank_plugins.common.provenance import git_state, hardware, versions
from highrank_plugins.inference.saved_progress import SavedProgress
from highrank_plugins.inference.streaming_model import (
    StreamingModel,
    digest_of_file,
    digest_of_tokens,
)
from highrank_plugins.inference.tuning import (
    EvaluatePoints,
    Outcome,
    Point,
    Search,
    tune_and_evaluate,
)

Grid = Mapping[str, Sequence[float]]  # option, without --, → the values to try


@dataclass(frozen=True)
class Run:
    """Describe an evaluation, whatever its kind.

    Args:
        checkpoint, data, device: see `StreamingModel.open`.
        kind: "dynamic" or "cache".
        output: the JSON file to write, if any.
        command: the typed command, for the record.
        split: the text to score.
        search: where to choose among several values.
        state: file for the progress; None: beside `output`, else beside the checkpoint.
        save_seconds: how often it is written.
    """

    checkpoint: Path
    data: str
    kind: str
    output: Path | None
    command: str
    split: str = "test"
    search: Search | None = None
    state: Path | None = None
    save_seconds: float = 120.0
    device: str | None = None


class Evaluation:
    """Hold a run with its model and its saved progress loaded.

    Args:
        values: the values to try.
        options: all other options that change the result.
        more_splits: splits besides `run`'s whose texts change the result.
    """

    def __init__(
        self, run: Run, values: Grid, options: Mapping[str, Any], more_splits: Sequence[str] = ()
    ) -> None:
        self.run, self.values, self.options = run, values, options
        self.model = StreamingModel.open(run.checkpoint, run.data, run.device)
        self.checkpoint = digest_of_file(run.checkpoint)
        state = self._state_file()
        for file in (state, run.output or state):
            file.parent.mkdir(parents=True, exist_ok=True)
        self.saved = SavedProgress(state, self._identity(more_splits), run.save_seconds)

    def _state_file(self) -> Path:
        run = self.run
        if run.state is not None:
            return run.state
        beside = run.checkpoint.with_suffix(f".{run.kind}") if run.output is None else run.output
        return beside.with_name(f"{beside.name}.state")

    def _identity(self, more_splits: Sequence[str]) -> dict[str, Any]:
        run = self.run
        search = [run.search.split] if run.search else []
        texts = dict.fromkeys([run.split, *search, *more_splits])
        return {
            "checkpoint": self.checkpoint,
            **{f"text of {s}": digest_of_tokens(self.model.text(s)) for s in texts},
            "--split": run.split,
            "--grid": [run.search.split, run.search.tokens] if run.search else False,
            **{f"--{name}": list(value) for name, value in self.values.items()},
            **{f"--{name}": value for name, value in self.options.items()},
            "--device": str(self.model.device),
            "torch": str(torch.__version__),
            "highrank_plugins": highrank_plugins.__version__,
        }

    def finish(
        self,
        evaluate: EvaluatePoints,
        points: Sequence[Point],
        echo: Callable[[str], object],
        **more: Any,
    ) -> None:
        """Evaluate the points, write the record, and delete the saved progress.

        Args:
            evaluate, points, echo: see `tune_and_evaluate`.
            more: further entries of the record.
        """
        run = self.run
        try:
            outcome, tried = tune_and_evaluate(evaluate, points, run.split, run.search, echo)
        except FloatingPointError:
            self.saved.remove()  # the search cannot be resumed after this error
            raise
        grid = run.search and {
            "split": run.search.split,
            "points": [tried_one.plain() for tried_one in tried],
        }
        if run.output is not None:
            write_json(run.output, {**self._record(outcome), "grid": grid, **more})
        self.saved.remove()

    def _record(self, outcome: Outcome) -> dict[str, Any]:
        run = self.run
        return {
            "metrics": outcome.metrics,
            "tokens": outcome.tokens,
            "signature": f"split:{run.split}|tokens:{outcome.tokens}|eval:{run.kind}",
            "point": outcome.point,
            "options": {"split": run.split, **self.options},
            "checkpoint": {
                "file": str(run.checkpoint),
                "sha256_begins": self.checkpoint,
                "arch": self.model.arch,
            },
            "command": run.command,
            "versions": versions(),
            "git": git_state(),
            "hardware": hardware(),
        }
