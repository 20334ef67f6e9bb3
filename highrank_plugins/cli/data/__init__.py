"""Provide `highrank data …`: from published files to binarised text."""

from highrank_plugins.cli import make_group
from highrank_plugins.cli.data.bitext import clean_texts, text_files, unpack_texts
from highrank_plugins.cli.data.corpora import (
    dialogue_files,
    dialogue_text,
    extract,
    fetch,
    fetch_corpus,
    lm_corpus,
)
from highrank_plugins.cli.data.text import binarise, check_text, pieces

data = make_group(
    {
        "fetch": fetch,
        "fetch-corpus": fetch_corpus,
        "extract": extract,
        "check-text": check_text,
        "clean-texts": clean_texts,
        "pieces": pieces,
        "binarise": binarise,
        "lm-corpus": lm_corpus,
        "dialogue-text": dialogue_text,
    },
    {
        "dialogue-files": dialogue_files,
        "text-files": text_files,
        "unpack-texts": unpack_texts,
    },
)
