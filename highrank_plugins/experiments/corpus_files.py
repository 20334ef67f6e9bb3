"""`corpus.yaml` of a recipe: which files a corpus is made of, and where they are published."""

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError

from highrank_plugins.experiments.fetch import fetch
from highrank_plugins.experiments.yaml_tree import ConfigurationError, read_tree

LEDGER = "checksums.txt"
UNKNOWN = "unknown"


class CorpusFile(BaseModel):
    """One file. A `sha256` that nobody published is `unknown`; `source` says who did."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    url: str
    sha256: Annotated[str, Field(pattern=f"^([0-9a-f]{{64}}|{UNKNOWN})$")]
    source: str
    size: PositiveInt | None = None


class CorpusFiles(BaseModel):
    """The files by their names."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    files: Annotated[
        dict[Annotated[str, Field(pattern=r"^[^/]*[^/.][^/]*$")], CorpusFile], Field(min_length=1)
    ]


def read_corpus_files(path: Path) -> dict[str, CorpusFile]:
    """The files that a `corpus.yaml` names.

    Raises:
        ConfigurationError: no such file, or it is not of this form; names file and line.
    """
    tree = read_tree(path)
    try:
        return CorpusFiles.model_validate(tree.values).files
    except ValidationError as error:
        lines = [
            f"{tree.place(tuple(map(str, e['loc'])))}: {'.'.join(map(str, e['loc']))}: {e['msg']}"
            for e in error.errors()
        ]
        raise ConfigurationError("\n".join(lines)) from None


def fetch_corpus(path: Path, folder: Path) -> list[str]:
    """Fetch all files into a folder; sums that nobody published go into its `checksums.txt`.

    Returns:
        A line for each.
    Raises:
        FetchError, ChecksumError: see `fetch`.
    """
    return [
        fetch(
            file.url,
            folder / name,
            sha256=None if file.sha256 == UNKNOWN else file.sha256,
            size=file.size,
            ledger=folder / LEDGER,
        )
        for name, file in read_corpus_files(path).items()
    ]
