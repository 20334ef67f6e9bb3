"""Prepare the corpora of published language models: from downloads to what fairseq reads.

Importing this package is cheap: numpy, torch and fairseq are imported inside functions.
"""

from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

from highrank_plugins.common.names import did_you_mean
from highrank_plugins.data.corpora.options import CorpusError, CorpusOptions

__all__ = ["CORPORA", "CorpusError", "CorpusOptions", "prepare_corpus"]

# name → function, as module:name, that takes data, output and options and yields lines to print
CORPORA = {
    "ptb": "highrank_plugins.data.corpora.word_corpora:prepare_ptb",
    "wikitext2": "highrank_plugins.data.corpora.word_corpora:prepare_wikitext2",
    "one_billion_word": "highrank_plugins.data.corpora.one_billion_word:prepare",
    "text8": "highrank_plugins.data.corpora.text8:prepare",
}


def prepare_corpus(name: str, data: Path, output: Path, options: CorpusOptions) -> Iterator[str]:
    """Read a corpus strictly, count it, and write it below `output`.

    `ptb` and `wikitext2` become `{train,valid,test}.txt` for fairseq-preprocess. The others need
    more than it can do, and become binarised files.

    Args:
        data: folder with the files as they are published, or with that folder.
    Returns:
        Lines to print: the counts.
    """
    if name not in CORPORA:
        known = ", ".join(CORPORA)
        raise CorpusError(f"no corpus {name!r}{did_you_mean(name, CORPORA)}; there are: {known}")
    if not data.is_dir():
        raise CorpusError(f"--data {data}: no such folder")
    module, function = CORPORA[name].split(":")
    prepare: Callable[[Path, Path, CorpusOptions], Iterator[str]]
    prepare = getattr(import_module(module), function)
    output.mkdir(parents=True, exist_ok=True)
    return prepare(data, output, options)
