"""A wrong DATA directory ends in a traceback, or in a message that does not help.

What breaks: a mistyped directory ends in a traceback with `FileNotFoundError: [Errno 2] No such
file or directory: 'data-bin'`, an empty one with `Could not infer language pair`, and a wrong
`--target-lang` with the name of a dictionary, below 15 functions. A wrong split ends with `Dataset
not found: dev (data-bin)`, which does not say which splits are there.
Why: fairseq opens files without asking whether they are there.
What we do: before a task is made, look for the directory, the language pair and the dictionaries;
where a split is not found, name those that are.
Remote paths, other tasks than ours and checkpoints that bring their own task are left alone.
Delete when: fairseq checks its data and names what is missing.
"""

import os
import re

from fairseq import tasks, utils
from fairseq.data import data_utils
from fairseq.tasks.language_modeling import LanguageModelingTask
from fairseq.tasks.translation import TranslationTask

from highrank_plugins.common.patching import replaces
from highrank_plugins.common.user_error import UserError

_WANTED = "Give the directory that `fairseq-preprocess` or `highrank data binarise` wrote."


@replaces(tasks, "setup_task")
def setup_task(stock, cfg, **kwargs):
    """Check the data, then make the task."""
    data = getattr(cfg, "data", None)
    if isinstance(data, str) and "://" not in data and not kwargs.get("from_checkpoint"):
        check_data(cfg, data)
    return stock(cfg, **kwargs)


class MissingSplit(UserError, FileNotFoundError):
    """Report a split that the data does not have; fairseq's callers expect FileNotFoundError."""


@replaces(TranslationTask, "load_dataset")
def load_sentence_pairs(stock, task, split, *args, **kwargs):
    """Load a split of sentence pairs."""
    return _naming_splits(stock, task, split, *args, **kwargs)


@replaces(LanguageModelingTask, "load_dataset")
def load_text(stock, task, split, *args, **kwargs):
    """Load a split of a language model."""
    return _naming_splits(stock, task, split, *args, **kwargs)


def _naming_splits(stock, task, split, *args, **kwargs):
    try:
        return stock(task, split, *args, **kwargs)
    except FileNotFoundError as error:
        if not str(error).startswith("Dataset not found"):
            raise
        folders = utils.split_paths((getattr(task, "cfg", None) or task.args).data)
        there = sorted(splits_of(folders[0]))
        found = f"It has {', '.join(there)}." if there else _WANTED
        raise MissingSplit(f"split {split} is missing in {folders[0]}. {found}") from error


def splits_of(folder: str) -> set[str]:
    """Return the names of the splits in a directory, whose files are NAME[.en-de.en].idx."""
    names = (re.fullmatch(r"([^.]+)(?:\.[^.]+\.[^.]+)?\.idx", name) for name in os.listdir(folder))
    return {name[1] for name in names if name}


def check_data(cfg, data: str) -> None:
    """Raise UserError if the binarised text of a task is missing."""
    folders = utils.split_paths(data)
    for folder in folders:
        if not os.path.isdir(folder):
            raise UserError(f"DATA {folder}: no such directory. {_WANTED}")
    task = getattr(cfg, "_name", None) or getattr(cfg, "task", None)
    if task == "translation":
        _check_translation(cfg, folders[0])
    elif task in ("language_modeling", "bptt_language_modeling") and not os.path.isfile(
        os.path.join(folders[0], "dict.txt")
    ):
        raise UserError(f"DATA {folders[0]}: it has no dict.txt of a language model. {_WANTED}")


def _check_translation(cfg, folder: str) -> None:
    languages = {"--source-lang": cfg.source_lang, "--target-lang": cfg.target_lang}
    if None in languages.values() and None in data_utils.infer_language_pair(folder):
        raise UserError(
            f"DATA {folder}: it has no sentence pairs, such as train.en-de.en.idx. {_WANTED}"
        )
    names = (re.fullmatch(r"dict\.(.+)\.txt", name) for name in os.listdir(folder))
    there = sorted(name[1] for name in names if name)
    for option, language in languages.items():
        if language is not None and language not in there:
            found = f"It has dictionaries of {', '.join(there)}." if there else _WANTED
            raise UserError(f"{option} {language}: {folder} has no dict.{language}.txt. {found}")
