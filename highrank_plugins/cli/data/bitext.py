"""Provide `highrank data unpack-texts`, `text-files` and `clean-texts`, for parallel text."""

from pathlib import Path
from typing import Annotated

import typer

from highrank_plugins.common.folders import whole_folder

CorpusYaml = Annotated[Path, "A recipe's corpus.yaml, with a block texts."]


def unpack_texts(
    file: CorpusYaml,
    archives: Annotated[Path, "Folder with the archives."],
    output: Annotated[Path, "Folder to write the text to."],
) -> None:
    """Unpack only the parallel text of a corpus's archives.

    Example: highrank data unpack-texts corpus.yaml archives texts
    """
    from highrank_plugins.data import parallel
    from highrank_plugins.data.corpus_files import read_corpus

    corpus = read_corpus(file)
    texts = parallel.texts_of(corpus, file)
    for line in parallel.unpack_texts(corpus, texts, archives, output):
        typer.echo(line)


def text_files(
    file: CorpusYaml,
    folder: Annotated[Path, "Folder with the unpacked text."],
) -> None:
    """Print the paths of a parallel corpus's text, one per line.

    Example: highrank data text-files corpus.yaml texts
    """
    from highrank_plugins.data import parallel
    from highrank_plugins.data.corpus_files import read_corpus

    for name in sorted(parallel.texts_of(read_corpus(file), file).names()):
        typer.echo(parallel.find_text(folder, name))


def clean_texts(
    file: CorpusYaml,
    folder: Annotated[Path, "Folder with the unpacked text."],
    output: Annotated[Path, "Folder for {train,valid,test}.LANGUAGE."],
    languages: Annotated[str, typer.Option(help="SOURCE,TARGET.")],
    max_words: Annotated[
        int, typer.Option(min=1, help="Drop sentence pairs with more words on a side.")
    ] = 250,
    max_ratio: Annotated[
        float, typer.Option(min=1, help="Drop sentence pairs whose length ratio exceeds this.")
    ] = 9.0,
    drop_duplicates: Annotated[
        bool, typer.Option("--drop-duplicates", help="Keep only the first of equal sentence pairs.")
    ] = False,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Read only the first N sentence pairs.")
    ] = None,
) -> None:
    """Clean the training text of a parallel corpus.

    Example: highrank data clean-texts corpus.yaml texts clean --languages en,de

    Prints how many sentence pairs were dropped and why, and writes it to cleaning.json.
    """
    from highrank_plugins.data import parallel
    from highrank_plugins.data.corpus_files import read_corpus

    with whole_folder(output, folder) as new:
        pair = language_pair(languages)
        parallel.refuse_other_languages(output, pair)
        texts = parallel.texts_of(read_corpus(file), file)
        rules = parallel.Rules(max_words, max_ratio, drop_duplicates, limit)
        for line in parallel.prepare_texts(texts, folder, new, pair, rules):
            typer.echo(line)


def language_pair(text: str) -> tuple[str, str]:
    """Return source and target."""
    source, comma, target = text.partition(",")
    if not (source and comma and target) or "," in target:
        raise ValueError(f"--languages {text}: expected SOURCE,TARGET, for example en,de")
    if source == target:
        raise ValueError(f"--languages {text}: source and target are the same language")
    return source, target
