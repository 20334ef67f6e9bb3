"""A few hundred sentence pairs in text/tiny, binarised once a session; their loss and entropy."""

import math
import re
from collections import Counter
from pathlib import Path

import pytest

from tests.fairseq_cli import run

TEXT = Path(__file__).parent / "text" / "tiny"


@pytest.fixture(scope="session")
def mt_data(tmp_path_factory) -> Path:
    """Return binarised En-De with two dictionaries."""
    return _preprocess(tmp_path_factory.mktemp("mt"), "--source-lang", "en", "--target-lang", "de")


@pytest.fixture(scope="session")
def joined_data(tmp_path_factory) -> Path:
    """Return binarised En-De with one dictionary."""
    languages = ["--source-lang", "en", "--target-lang", "de", "--joined-dictionary"]
    return _preprocess(tmp_path_factory.mktemp("joined"), *languages)


@pytest.fixture(scope="session")
def lm_data(tmp_path_factory, mt_data) -> Path:
    """Return binarised German with the dictionary of `mt_data`, also good for --lm-path."""
    folder = tmp_path_factory.mktemp("lm")
    dictionary = ["--srcdict", mt_data / "dict.de.txt"]
    return _preprocess(folder, "--only-source", *dictionary, suffix=".de")


def _preprocess(folder: Path, *options: object, suffix: str = "") -> Path:
    prefixes = [
        x for s in ("train", "valid", "test") for x in (f"--{s}pref", f"{TEXT / s}{suffix}")
    ]
    run("preprocess", *prefixes, *options, "--destdir", folder)
    return folder


def unigram_entropy(dictionary: Path) -> float:
    """Return bits per token of the training text, end of sentence included."""
    rows = (line.rsplit(" ", 1) for line in dictionary.read_text().splitlines())
    counts = Counter({word: int(count) for word, count in rows})
    counts["</s>"] = len((TEXT / "train.de").read_text().splitlines())
    total = counts.total()
    return -sum(n / total * math.log2(n / total) for n in counts.values() if n)


def valid_losses(output: str) -> list[float]:
    """Return the nll (base 2) of every validation, or the loss if there is no nll."""
    pattern = r"valid on 'valid' subset \| loss ([\d.]+)(?: \| nll_loss ([\d.]+))?"
    return [float(nll or loss) for loss, nll in re.findall(pattern, output)]
