"""Take the text of a parallel corpus out of its archives."""

from collections.abc import Iterator
from pathlib import Path

from highrank_plugins.common.yaml_tree import ConfigurationError
from highrank_plugins.data.archives import ArchiveError, extract
from highrank_plugins.data.corpus_files import CorpusFiles, Texts


def texts_of(corpus: CorpusFiles, path: Path) -> Texts:
    """Return the text that a `corpus.yaml` names.

    Raises:
        ConfigurationError: it names none.
    """
    if corpus.texts is None:
        raise ConfigurationError(f"{path}: has no block texts: [source, target] for each part")
    return corpus.texts


def unpack_texts(corpus: CorpusFiles, texts: Texts, archives: Path, output: Path) -> Iterator[str]:
    """Unpack what is text, and only that, each archive into a folder of its name.

    Yields:
        What was done, a line for each archive.
    Raises:
        ArchiveError: see `extract`; or a text is in none of the archives.
    """
    wanted = frozenset(texts.names())
    for name in corpus.files:
        extract(archives / name, output / name, wanted)
        files = [path for path in (output / name).rglob("*") if path.is_file()]
        yield f"{archives / name}: {len(files)} files, {sum(p.stat().st_size for p in files):,} B"
    for text in sorted(wanted):
        find_text(output, text)


def find_text(folder: Path, name: str) -> Path:
    """Find a file as archives name it, in the folder or in one of its folders.

    Raises:
        ArchiveError: there is none; says where it was looked for.
    """
    for path in (folder / name, *(below / name for below in sorted(folder.glob("*/")))):
        if path.is_file():
            return path
    raise ArchiveError(f"{folder}: neither {name} nor FOLDER/{name} is there")
