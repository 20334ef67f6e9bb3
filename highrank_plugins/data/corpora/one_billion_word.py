"""Prepare the One Billion Word benchmark (Chelba et al. 2013) as in Yang et al. 2018.

The text is in lower case, with the 100,000 most frequent words of the training text; others are
<unk>. There are 99 training shards; the held-out files 00 and 10 validate, 20, 30 and 40 test.
"""

import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path

from highrank_plugins.common.formatting import bar_options
from highrank_plugins.common.processes import Item, Result, batches, ordered_map, usable_cores
from highrank_plugins.common.text_lines import TextRules, read_text
from highrank_plugins.common.user_error import UserError
from highrank_plugins.data import binarising
from highrank_plugins.data.corpora import CorpusOptions
from highrank_plugins.data.corpora.word_corpora import WordCounts

ARCHIVE = "1-billion-word-language-modeling-benchmark-r13output"
TRAIN = "training-monolingual.tokenized.shuffled/news.en-{:05d}-of-00100"
HELDOUT = "heldout-monolingual.tokenized.shuffled/news.en.heldout-{:05d}-of-00050"
SHARDS = range(1, 100)  # 00000 is the held-out part
PARTS = {"valid": (0, 10), "test": (20, 30, 40)}
VOCAB_SIZE = 100_000
LOWER = TextRules(lower=True)


def prepare(name: str, data: Path, output: Path, options: CorpusOptions) -> Iterator[str]:
    """Write `output`/{dict.txt,valid.*,test.*} and, for each shard, `output`/shardNN/train.*.

    A shard's folder has the dictionary too, and the first one the other splits, so that
    fairseq-train takes `output/shard01:output/shard02:…`: a shard is an epoch.
    """
    options.refuse(name, "max_train_lines")
    root = data / ARCHIVE if (data / ARCHIVE).is_dir() else data
    shards = {n: path for n in SHARDS if (path := root / TRAIN.format(n)).is_file()}
    first = root / TRAIN.format(1)
    if not shards:
        raise UserError(f"{first} does not exist: put the corpus there")
    options.require_known(len(shards), len(SHARDS), f"{first} …: files")
    parts = {part: [root / HELDOUT.format(n) for n in which] for part, which in PARTS.items()}
    if missing := [path for path in chain(*parts.values()) if not path.is_file()]:
        raise UserError(f"{missing[0]} does not exist: put the corpus there")
    words = Counter[str]()
    for counted in _parallel(count_words, shards.values(), "count words"):
        words.update(counted)
    vocabulary = WordCounts(words).most_frequent(options.vocab_size or VOCAB_SIZE)
    numbers = binarising.write_dictionary(
        output / "dict.txt", ((word, words[word]) for word in vocabulary)
    )
    for part, files in parts.items():
        yield binarising.report(part, *binarise(numbers, (output / part, files)))
    total = _binarise_shards(output, shards, numbers)
    yield binarising.report(f"train, {len(shards)} shards", *total)
    yield f"{len(words):,} different words, of which {len(vocabulary):,} are kept"


def _binarise_shards(
    output: Path, shards: dict[int, Path], numbers: dict[str, int]
) -> tuple[int, int, int]:
    """Binarise each shard into its folder; return the sums of the counts of `binarise`."""
    jobs = [(output / f"shard{n:02}" / "train", [path]) for n, path in shards.items()]
    for prefix, _ in jobs:
        prefix.parent.mkdir()
        shutil.copyfile(output / "dict.txt", prefix.with_name("dict.txt"))
    for part in PARTS:
        for suffix in ("bin", "idx"):
            name = f"{part}.{suffix}"
            shutil.copyfile(output / name, jobs[0][0].with_name(name))
    counts = _parallel(partial(binarise, numbers), jobs, "binarise")
    lines, tokens, unknown = (sum(column) for column in zip(*counts, strict=True))
    return lines, tokens, unknown


def count_words(path: Path) -> Counter[str]:
    """Count each word of a file, in lower case."""
    return WordCounts().add(map(str.split, read_text(path, LOWER))).words


def binarise(numbers: dict[str, int], job: tuple[Path, list[Path]]) -> tuple[int, int, int]:
    """Write a job's prefix.{bin,idx}; return its lines, tokens with </s> and unknown words."""
    prefix, files = job
    lines = chain.from_iterable(read_text(path, LOWER) for path in files)
    number = partial(binarising.number, numbers | {"</s>": binarising.END_NUMBER})
    blocks = map(number, batches(lines, binarising.BATCH))
    return binarising.write_split(prefix, blocks, binarising.SPECIAL + len(numbers))


def _parallel(work: Callable[[Item], Result], items: Iterable[Item], name: str) -> Iterator[Result]:
    """Run `ordered_map` with a progress bar."""
    from tqdm import tqdm

    todo = list(items)
    results = ordered_map(work, todo, min(usable_cores(), len(todo)))
    yield from tqdm(results, name, len(todo), unit="shard", **bar_options())
