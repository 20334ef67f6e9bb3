"""`highrank data fetch`, `fetch-corpus` and `extract`: from a URL to files."""

from pathlib import Path
from typing import Annotated

import typer

from highrank_plugins.cli.user_error import user_errors


def fetch(
    url: Annotated[str, typer.Argument(help="http, https, file, or a path.")],
    output: Annotated[Path, typer.Option(help="The file; what has come so far is in FILE.part.")],
    sha256: Annotated[str | None, typer.Option(help="The published sum.")] = None,
    ledger: Annotated[
        Path | None,
        typer.Option(help="Without a published sum: where to record it, and to look it up later."),
    ] = None,
    size: Annotated[int | None, typer.Option(min=1, help="Bytes, if known.")] = None,
) -> None:
    """Download a file, go on with an interrupted download, and check it; or check what is there."""
    from highrank_plugins.data import fetch as fetching

    with user_errors():
        if sha256 is not None and ledger is not None:
            raise ValueError("--sha256 and --ledger: give one of them")
        typer.echo(fetching.fetch(url, output, sha256=sha256, size=size, ledger=ledger))


def fetch_corpus(
    file: Annotated[Path, typer.Argument(help="A recipe's corpus.yaml.")],
    folder: Annotated[Path, typer.Argument(help="Where the files and checksums.txt go.")],
    ledger: Annotated[
        Path | None, typer.Option(help="For sums that nobody published. [FOLDER/checksums.txt]")
    ] = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Check what is there; a missing file is an error.")
    ] = False,
) -> None:
    """Fetch and check all files that a corpus is made of."""
    from highrank_plugins.data import corpus_files

    with user_errors():
        for line in corpus_files.fetch_corpus(file, folder, ledger=ledger, offline=offline):
            typer.echo(line)


def extract(
    archive: Annotated[Path, typer.Argument(help="A .tar.gz, .tgz, .zip or .gz.")],
    folder: Annotated[Path, typer.Argument(help="A new folder for what it holds.")],
) -> None:
    """Unpack an archive; whatever would lie outside of the folder is refused."""
    from highrank_plugins.data import archives

    with user_errors():
        archives.extract(archive, folder)
