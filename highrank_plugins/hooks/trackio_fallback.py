"""`--wandb-project` does nothing where Weights & Biases is not installed.

What breaks: the training runs, and each epoch says `wandb not found, pip install wandb`. Nothing is
tracked, which people notice when the training run has ended.
Why: fairseq can use only this tracker, and continues without it.
What we do: track with trackio instead (extra `track`), which keeps its data on this machine. A
message says so; where trackio is missing too, one warning names both. A resumed training run
continues the run of its name.
Delete when: fairseq knows several trackers.
"""

import atexit
import logging
from typing import Any

from fairseq.logging import progress_bar as bars

from highrank_plugins.common.patching import replaces

logger = logging.getLogger(__name__)
_said: set[str] = set()


class Trackio:
    """Provide wandb's functions through trackio, whose `init` would start a run each time."""

    def __init__(self, trackio: Any) -> None:
        self.trackio = trackio
        self.config: dict[str, Any] = {}  # fairseq updates it
        self.wanted: tuple[str, str | None] = "", None
        self.running: tuple[str, str | None] | None = None

    def init(self, project: str, reinit: bool = False, name: str | None = None) -> None:
        """Note project and name of the run; fairseq calls this for every bar."""
        self.wanted = project, name

    def log(self, values: dict[str, Any], step: int | None = None) -> None:
        """Log numbers; start the run before its first ones."""
        if self.running != self.wanted:
            project, name = self.wanted
            self.trackio.init(project, name=name, config=_allowed(self.config), resume="allow")
            if self.running is None:
                atexit.register(self.trackio.finish)
            self.running = self.wanted
        self.trackio.log(values, step=step)


def _allowed(config: Any) -> Any:
    """Return options without names that begin with _, which trackio refuses."""
    if not isinstance(config, dict):
        return config
    return {
        name: _allowed(value) for name, value in config.items() if not str(name).startswith("_")
    }


@replaces(bars, "progress_bar")
def progress_bar(stock, *args, wandb_project=None, **kwargs):
    """Return a progress bar that tracks with wandb, with trackio, or not at all."""
    if wandb_project and bars.wandb is None:
        bars.wandb = _trackio(wandb_project)
        if bars.wandb is None:
            wandb_project = None
    return stock(*args, wandb_project=wandb_project, **kwargs)


def _trackio(project: str) -> Trackio | None:
    try:
        import trackio
    except ImportError:
        _say(
            logging.WARNING,
            f"--wandb-project {project}: neither wandb nor trackio is installed, so nothing is "
            "tracked. Install one (pip install wandb, or this package with its extra `track`), "
            "or read metrics.jsonl in --save-dir.",
        )
        return None
    _say(
        logging.INFO,
        f"--wandb-project {project}: wandb is not installed; tracking with trackio on this "
        f"machine. View it with: trackio show --project {project}",
    )
    return Trackio(trackio)


def _say(level: int, text: str) -> None:
    if text not in _said:
        _said.add(text)
        logger.log(level, text)
