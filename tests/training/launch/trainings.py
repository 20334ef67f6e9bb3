"""The training run that is launched in several ways, and what one process makes of it."""

from pathlib import Path

from tests.trainings import NARROW, OUR_LOSS, TRANSLATION, train

ARCH = "transformer_mixtape_tiny"
UPDATES = 60
OPTIONS = ["--dropout", "0", "--label-smoothing", "0.1", "--log-interval", "1"]


def command(data: Path, save_dir: Path, updates: int = UPDATES) -> list[str]:
    """Return `fairseq-train …` for two processes."""
    where = ["--save-dir", save_dir, "--arch", ARCH, "--max-update", updates]
    words = ["fairseq-train", data, *where, *TRANSLATION, *NARROW, *OUR_LOSS, *OPTIONS]
    return [str(word) for word in words]


def one_process(data: Path, folder: Path) -> Path:
    """Return the --save-dir of the same training run by one process."""
    train(data, folder / "one", ARCH, UPDATES, *OPTIONS, "--update-freq", 2)
    return folder / "one"
