"""Read `corpus.yaml` of a recipe: the files of a corpus, and where they are published."""

import re
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, model_validator

from highrank_plugins.common.blocks import ConfigurationError, read_tree, validated
from highrank_plugins.common.folders import held
from highrank_plugins.common.user_error import UserError
from highrank_plugins.data.fetch import fetch

UNKNOWN = "unknown"


class CorpusFile(BaseModel):
    """Describe one file: its published checksum, or `unknown`, and who published it (`source`)."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    url: str
    sha256: Annotated[str | None, Field(pattern=f"^([0-9a-f]{{64}}|{UNKNOWN})$")] = None
    md5: Annotated[str | None, Field(pattern="^[0-9a-f]{32}$")] = None
    source: str
    size: PositiveInt | None = None

    @model_validator(mode="after")
    def _has_a_sum(self) -> "CorpusFile":
        if self.sha256 is None and self.md5 is None:
            raise ValueError(f"needs sha256 (which may be {UNKNOWN}) or md5")
        return self


Names = Annotated[list[str], Field(min_length=2, max_length=2)]


class Texts(BaseModel):
    """Say which files are the text, [source, target] each, and their published numbers of pairs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    train_pairs: PositiveInt | None = None
    valid_pairs: PositiveInt | None = None
    test_pairs: PositiveInt | None = None

    train: list[Names]
    valid: list[Names]
    test: list[Names]

    def names(self) -> set[str]:
        """Return the names of all files."""
        return {name for pairs in (self.train, self.valid, self.test) for p in pairs for name in p}


class CorpusFiles(BaseModel):
    """Hold the files by their names, the text in them, and the disk space that recipes check."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    files: Annotated[
        dict[Annotated[str, Field(pattern=r"^[^/]*[^/.][^/]*$")], CorpusFile],
        Field(min_length=1, default_factory=dict),
    ]
    texts: Texts | None = None
    gigabytes: PositiveInt | None = None


def read_corpus(path: Path) -> CorpusFiles:
    """Return what a `corpus.yaml` says."""
    tree = read_tree(path, may_inherit=False)  # recipes notice changes of this file only
    return validated(CorpusFiles, tree)


def check_languages(path: Path, corpus: CorpusFiles, languages: tuple[str, str]) -> None:
    """Refuse a corpus of other languages, by two letters at the ends of both names of a pair."""
    texts = corpus.texts
    for names in [*texts.train, *texts.valid, *texts.test] if texts is not None else ():
        endings = [re.search(r"\.([a-z]{2})(\.gz|\.sgm)*$", name) for name in names]
        found = {match[1] for match in endings if match is not None}
        if None not in endings and found != set(languages):
            raise ConfigurationError(
                f"{path}: {' and '.join(names)} are named as text of other languages than "
                f"{' and '.join(languages)}, which this training run has: give the corpus file of "
                "these (in a recipe, --corpus FILE)"
            )


def fetch_corpus(
    path: Path, folder: Path, *, ledger: Path | None = None, offline: bool = False
) -> list[str]:
    """Fetch all files into a folder, or check existing ones; return a line for each."""
    files = read_corpus(path).files
    for name, file in files.items():
        if offline and not (folder / name).is_file():
            raise UserError(f"{folder / name}: no such file; get it from {file.url}")
    lock = held(folder / ".lock", f"folder {folder}", "download", waits=True)
    with nullcontext() if offline else lock:
        return [
            fetch(
                file.url,
                folder / name,
                sha256=None if file.sha256 == UNKNOWN else file.sha256,
                md5=file.md5,
                size=file.size,
                ledger=ledger,
            )
            for name, file in files.items()
        ]
