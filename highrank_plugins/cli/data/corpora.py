"""Provide `highrank data fetch`, `fetch-corpus`, `extract`, `lm-corpus` and `dialogue-…`."""

import logging
from pathlib import Path
from typing import Annotated

import typer

from highrank_plugins.common.folders import whole_folder
from highrank_plugins.common.processes import usable_cores


def fetch(
    url: Annotated[str, "URL (http, https, file) or path."],
    output: Annotated[
        Path, typer.Option(help="File to write; an incomplete download is in FILE.part.")
    ],
    sha256: Annotated[str | None, "Published SHA-256 checksum."] = None,
    ledger: Annotated[
        Path | None, "File that records unpublished checksums, to compare later downloads with."
    ] = None,
    size: Annotated[
        int | None, typer.Option(min=1, help="Size of the file in bytes, if known.")
    ] = None,
) -> None:
    """Download a file and check it.

    Example: highrank data fetch https://example.org/ptb.tgz --output ptb.tgz

    Resumes an interrupted download. A file that exists is only checked.
    """
    from highrank_plugins.data import fetch as fetching

    if sha256 is not None and ledger is not None:
        raise ValueError("--sha256 and --ledger exclude each other")
    typer.echo(fetching.fetch(url, output, sha256=sha256, size=size, ledger=ledger))


def fetch_corpus(
    file: Annotated[Path, "A recipe's corpus.yaml."],
    folder: Annotated[Path, "Folder for the files and checksums.txt."],
    ledger: Annotated[
        Path | None, "File that records unpublished checksums. [FOLDER/checksums.txt]"
    ] = None,
    offline: Annotated[
        bool,
        typer.Option("--offline", help="Check existing files only; a missing file is an error."),
    ] = False,
) -> None:
    """Fetch and check all files of a corpus.

    Example: highrank data fetch-corpus recipes/ptb/corpus.yaml downloads
    """
    from highrank_plugins.data import corpus_files

    for line in corpus_files.fetch_corpus(file, folder, ledger=ledger, offline=offline):
        typer.echo(line)


def extract(
    archive: Annotated[Path, "A .tar.gz, .tgz, .zip or .gz."],
    folder: Annotated[Path, "New folder to extract into."],
) -> None:
    """Unpack an archive into a new folder.

    Example: highrank data extract ptb.tgz ptb

    Refuses entries that would escape the folder.
    """
    from highrank_plugins.data import archives

    archives.extract(archive, folder)


def lm_corpus(
    name: Annotated[str, "ptb, wikitext2, one_billion_word or text8."],
    data: Annotated[Path, typer.Option(help="Folder with the published files.")],
    output: Annotated[Path, typer.Option(help="Folder for the text, or for binarised files.")],
    vocab_size: Annotated[
        int | None,
        "Keep the N most frequent words; others become <unk>. "
        "[default: all; one_billion_word: 100000]",
    ] = None,
    max_train_lines: Annotated[int | None, "Read only the first N training lines."] = None,
    other_text: Annotated[
        bool,
        typer.Option("--other-text", help="Accept counts that differ from the published ones."),
    ] = False,
    workers: Annotated[
        int | None, "Number of processes, for one_billion_word. [default: number of cores]"
    ] = None,
) -> None:
    """Check a published corpus, and write it for fairseq.

    Example: highrank data lm-corpus ptb --data downloads --output text

    Compares the counts of lines and words with the published ones.
    """
    from highrank_plugins.common.checksums import SUMS, read_ledger, write_sums
    from highrank_plugins.data.corpora import CorpusOptions, prepare_corpus

    logging.disable(logging.INFO)  # hides fairseq's log
    with whole_folder(output, data) as new:
        workers = workers or usable_cores()
        options = CorpusOptions(vocab_size, max_train_lines, other_text, workers)
        for line in prepare_corpus(name, data, new, options):
            typer.echo(line)
        for folder in {index.parent for index in new.rglob("*.idx")}:
            write_sums(folder, read_ledger(output / folder.relative_to(new) / SUMS))


Corpus = Annotated[Path, "Folder with the corpus of Zhao et al. 2017."]


def dialogue_files(corpus: Corpus) -> None:
    """Print the files that `data dialogue-text` reads, one per line.

    Example: highrank data dialogue-files swda
    """
    from highrank_plugins.data.dialogue import input_files

    typer.echo("\n".join(map(str, input_files(corpus))))


def dialogue_text(
    corpus: Corpus,
    output: Annotated[Path, "Directory for contexts and responses."],
    context: Annotated[
        int, typer.Option(min=1, help="Number of utterances before a response.")
    ] = 9,
) -> None:
    """Write dialogues as contexts, responses and references.

    Example: highrank data dialogue-text swda dialogues
    """
    from highrank_plugins.data.dialogue import write_parallel

    with whole_folder(output, corpus) as new:
        for name, counts in write_parallel(corpus, new, context).items():
            typer.echo(f"{name}: {counts.contexts} contexts, {counts.references} references")
