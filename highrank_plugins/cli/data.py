"""Provide `highrank data …`: from published files to binarised text."""

from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from highrank_plugins.analysis.scored_text import Tokens
from highrank_plugins.cli import make_group
from highrank_plugins.cli.options import names
from highrank_plugins.common.blocks import option
from highrank_plugins.common.files import write_sums
from highrank_plugins.common.folders import new_folder
from highrank_plugins.common.processes import usable_cores
from highrank_plugins.common.text_lines import NO_EMPTY_LINES, check_texts, counts_of
from highrank_plugins.data import binarising, corpus_files, parallel
from highrank_plugins.data.archives import extract
from highrank_plugins.data.corpora import CorpusOptions, prepare_corpus
from highrank_plugins.data.own_files import choose_size
from highrank_plugins.data.own_text import OwnText
from highrank_plugins.data.pieces import PieceSettings, split_texts

PROCESSES = option(None, "Number of processes (default: number of cores).", ge=1)


def fetch(
    file: Annotated[Path, "A recipe's corpus.yaml."],
    folder: Annotated[Path, "Folder for the files and checksums.txt."],
    unpack: Path | None = option(None, "New folder to unpack all files or texts into."),
    texts: bool = option(False, "Only print the paths of the unpacked text in FOLDER."),
    ledger: Path | None = option(None, "File for unpublished checksums. [FOLDER/checksums.txt]"),
    offline: bool = option(False, "Check existing files only; a missing file is an error."),
) -> None:
    """Fetch, check and unpack the files of a corpus.

    Example: highrank data fetch recipes/ptb/corpus.yaml downloads --unpack ptb

    Resumes an interrupted download. A file that exists is only checked. An archive with entries
    that would escape the folder is refused.
    """
    corpus = corpus_files.read_corpus(file)
    if texts:
        for name in sorted(parallel.texts_of(corpus, file).names()):
            typer.echo(parallel.find_text(folder, name))
        return
    for line in corpus_files.fetch_corpus(file, folder, ledger=ledger, offline=offline):
        typer.echo(line)
    if unpack is None:
        return
    if corpus.texts is None:
        for name in corpus.files:
            extract(folder / name, unpack if len(corpus.files) == 1 else unpack / name)
        return
    for line in parallel.unpack_texts(corpus, corpus.texts, folder, unpack):
        typer.echo(line)


def clean_texts(
    file: Annotated[Path, "A recipe's corpus.yaml, with a block texts."],
    folder: Annotated[Path, "Folder with the unpacked text."],
    output: Annotated[Path, "Folder for {train,valid,test}.LANGUAGE."],
    *,
    languages: str = option(..., "SOURCE,TARGET."),
    rules: parallel.Rules,
) -> None:
    """Clean the training text of a parallel corpus.

    Example: highrank data clean-texts corpus.yaml texts clean --languages en,de

    Prints how many sentence pairs were dropped and why, and writes it to cleaning.json.
    """
    pair = language_pair(languages)
    with new_folder(output) as new:
        texts = parallel.texts_of(corpus_files.read_corpus(file), file)
        for line in parallel.prepare_texts(texts, folder, new, pair, rules):
            typer.echo(line)


def language_pair(text: str) -> tuple[str, str]:
    """Return source and target."""
    source, _, target = text.partition(",")
    if not (source and target) or "," in target or source == target:
        raise ValueError(f"--languages {text}: expected SOURCE,TARGET, for example en,de")
    return source, target


def check_text(
    files: Annotated[list[Path], "Files whose lines belong together, plain or NAME.gz."],
) -> None:
    """Check text: UTF-8, no empty lines, equal numbers of lines.

    Example: highrank data check-text train.en train.de

    Takes any number of files. Also refuses lines of more than 1,000 words, NUL, CR, byte order
    marks and words that fairseq reserves.
    """
    check_texts(files, NO_EMPTY_LINES)
    for file in files:
        typer.echo(f"{file}: {counts_of(file)}")


def pieces(
    text: Annotated[Path, "Directory with {train,valid,test}.LANGUAGE."],
    output: Annotated[Path, "Directory for the piece model and the text as pieces."],
    *,
    languages: str = option(..., "Languages, separated by commas."),
    settings: PieceSettings,
    processes: int | None = PROCESSES,
) -> None:
    """Learn pieces (BPE), and write all text as pieces.

    Example: highrank data pieces text pieces --languages en,de --vocab-size 8000

    Learns from the training text alone.
    """
    named = names("--languages", languages)
    with new_folder(output) as new:  # created before the work
        for line in split_texts(text, new, named, settings, processes or usable_cores()):
            typer.echo(line)


def binarise(
    pieces: Annotated[Path, "Directory with {train,valid,test}.LANGUAGE."],
    output: Annotated[Path, "Directory for the binarised data."],
    languages: str = option(..., "SOURCE,TARGET, or that of a language model."),
    processes: int | None = PROCESSES,
) -> None:
    """Binarise text faster than fairseq-preprocess.

    Example: highrank data binarise pieces data-bin --languages en,de

    Writes the same bytes as fairseq-preprocess --joined-dictionary. The training text decides the
    dictionary. One language: data for a language model, as of --only-source --padding-factor 1.
    """
    named = language_pair(languages) if "," in languages else (languages,)
    with new_folder(output) as new:
        for line in binarising.binarise(pieces, new, named, processes or usable_cores()):
            typer.echo(line)


def own_text(
    text: Annotated[
        Path, "Folder or file of your text, or DIR/NAME of NAME.SOURCE and NAME.TARGET."
    ],
    source: str | None = option(None, "Language to translate from, the ending of its files."),
    target: str | None = option(None, "Language to translate to, the ending of its files."),
    sizes: Path = option(..., "A recipe's sizes.yaml."),
    size: str = option("auto", "Size of sizes.yaml, or auto: by lines and pieces."),
    output: Path | None = option(None, "New folder for {train,valid,test} (default: only check)."),
    units: Literal["words", "pieces"] = option("pieces", "What a language model predicts."),
    order: Literal["lines", "stream"] = option("lines", "Split by a hash of lines, or by place."),
    overlap: Literal["refuse", "drop", "keep"] = option(
        "refuse", "Lines of valid and test that are in train: refuse, drop or keep them in train."
    ),
    limit: int | None = option(None, "Read only the first N training lines.", ge=1),
    bleu_tokens: Tokens | None = option(None, "Tokens of sacreBLEU."),
) -> None:
    """Take your own text: check it, split it, choose a size.

    Example: highrank data own-text mine --source cs --target en --sizes sizes.yaml

    Prints the options of the size; what it reads and leaves out is said on standard error.
    """
    if bool(source) != bool(target):
        raise ValueError("--source and --target: give both for a translator, none for other text")
    endings = (source, target) if source and target else ("txt",)
    own = OwnText(text, endings, order == "stream", overlap, limit, units == "words", bleu_tokens)
    say = partial(typer.echo, err=True)
    with nullcontext() if output is None else new_folder(output) as new:
        for line in own.take(new):
            if new is None:  # else it has been said
                say(line)
        chosen, why, settings = choose_size(sizes, own.counts, size, units)
        words = settings.pop("words", None)
        if new and units == "words":
            for line in own.replace_rare(new, **words):
                say(line)
    said = {name.removeprefix("data."): value for name, value in settings.items()}
    if output is None:
        say(f"size {chosen} ({why}): {', '.join(f'{n} {v}' for n, v in said.items())}")
    for name, value in settings.items():
        typer.echo(f"{name}={value}")


def lm_corpus(
    name: Annotated[str, "ptb, wikitext2, one_billion_word or text8."],
    *,
    data: Path = option(..., "Folder with the published files."),
    output: Path = option(..., "Folder for the text, or for binarised files."),
    options: CorpusOptions,
) -> None:
    """Check a published corpus, and write it for fairseq.

    Example: highrank data lm-corpus ptb --data downloads --output text

    Compares the counts of lines and words with the published ones.
    """
    with new_folder(output) as new:
        for line in prepare_corpus(name, data, new, options):
            typer.echo(line)
        for folder in {index.parent for index in new.rglob("*.idx")}:
            write_sums(folder)


data = make_group(
    {"clean-texts": clean_texts, "pieces": pieces, "binarise": binarise},
    {"fetch": fetch, "check-text": check_text, "own-text": own_text, "lm-corpus": lm_corpus},
)
