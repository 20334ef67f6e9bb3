"""The files of a corpus, under the names they are published or copied by."""

from collections.abc import Sequence
from pathlib import Path

from highrank_plugins.experiments.corpora.options import CorpusError

SPLITS = ("train", "valid", "test")


def find_splits(data: Path, layouts: Sequence[str]) -> dict[str, Path]:
    """The file of each split, plain or with .gz.

    Args:
        layouts: names below `data` with {split}; the first of which there is a training file.
    Raises:
        CorpusError: no training file, or another split is missing; names the files.
    """
    for layout in layouts:
        if _there(data / layout.format(split="train")):
            return {split: _require(data / layout.format(split=split)) for split in SPLITS}
    names = ", ".join(layout.format(split="{" + ",".join(SPLITS) + "}") for layout in layouts)
    raise CorpusError(
        f"--data {data}: no training text; put the files there under one of these names, plain or "
        f"with .gz: {names}"
    )


def _require(path: Path) -> Path:
    found = _there(path)
    if not found:
        raise CorpusError(f"neither {path} nor {path}.gz exists: put it there")
    return found


def _there(path: Path) -> Path | None:
    compressed = path.with_name(f"{path.name}.gz")
    return next((each for each in (path, compressed) if each.is_file()), None)
