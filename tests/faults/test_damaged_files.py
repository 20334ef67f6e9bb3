"""Damaged checkpoints and binarised data are refused, or load as what they were."""

import itertools
import os
import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.data import Dictionary, data_utils

from highrank_plugins.common.checkpoint_file import DamagedArchiveError, check_archive
from highrank_plugins.common.files import write_sums
from tests.compat.conftest import data, translator
from tests.faults.test_kills import differences
from tests.trainings import leaves

__all__ = ["data", "translator"]
PAGE = 4096
FEW, ALL = {"flip": 40, "cut": 12, "zero": 12}, {"flip": 1000, "cut": 300, "zero": 300}
COUNTS = [FEW, pytest.param(ALL, marks=[pytest.mark.long, pytest.mark.timeout(1800)])]


def damaged(content: bytes, kind: str, draw: random.Random) -> bytes:
    """Flip a bit, cut the end off, or fill a page with zeros."""
    changed = bytearray(content)
    place = draw.randrange(len(changed))
    if kind == "flip":
        changed[place] ^= 1 << draw.randrange(8)
    elif kind == "cut":
        del changed[place:]
    else:
        start = place - place % PAGE
        changed[start : start + PAGE] = bytes(len(changed[start : start + PAGE]))
    return bytes(changed)


def equal(a: object, b: object) -> bool:
    return not differences(dict(leaves(a)), dict(leaves(b)))


def refused_of(path: Path, counts: dict[str, int], load: Callable[[], object]) -> dict[str, int]:
    """Damage a file, and return how often loading it is refused; it must not change otherwise."""
    content, draw, sound = path.read_bytes(), random.Random(1), load()
    refused, times = dict.fromkeys(counts, 0), itertools.count()
    for kind, count in counts.items():
        for number in range(count):
            path.write_bytes(damaged(content, kind, draw))
            os.utime(path, ns=(0, next(times)))  # the archive's check looks again
            try:
                loaded = load()
            except ValueError as error:
                assert path.name in str(error)
                refused[kind] += 1
            else:
                assert equal(loaded, sound), f"{kind} {number} changed what is loaded"
    print(f"{path.name}: {refused} refused of {counts}, all others unchanged")
    return refused


@pytest.mark.parametrize("counts", COUNTS, ids=["few", "all"])
def test_damaged_checkpoints_are_refused(translator, tmp_path, counts):
    path = Path(shutil.copy(translator, tmp_path / "damaged.pt"))
    refused = refused_of(path, counts, lambda: checkpoint_utils.load_checkpoint_to_cpu(str(path)))
    assert refused["cut"] == counts["cut"]
    assert refused["flip"] > counts["flip"] / 2


@pytest.mark.parametrize(
    "stride", [17, pytest.param(1, marks=[pytest.mark.long, pytest.mark.timeout(600)])]
)
def test_each_bit_of_an_archive_is_checked_or_without_effect(tmp_path, stride):
    state = {"weights": torch.arange(6.0), "counts": torch.ones(3, dtype=torch.int64), "x": 1}
    path = tmp_path / "checkpoint.pt"
    torch.save(state, path)
    content, accepted = path.read_bytes(), 0
    for bit in range(0, 8 * len(content), stride):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        path = tmp_path / f"{bit}.pt"
        path.write_bytes(changed)
        with suppress(DamagedArchiveError):
            check_archive(path)
            assert equal(torch.load(path), state), f"bit {bit} changed what is loaded"
            accepted += 1
        path.unlink()
    assert 0 < accepted < 8 * len(content) / stride / 2 + 1
    marked = bytearray(content)
    entry = marked.rindex(b"PK\1\2", 0, marked.rindex(b"data/0"))
    marked[entry + 38] |= 0x10  # external attributes: torch would then read nothing
    path.write_bytes(marked)
    with pytest.raises(DamagedArchiveError, match="data/0 is marked as a folder"):
        check_archive(path)


@pytest.mark.parametrize("counts", COUNTS, ids=["few", "all"])
@pytest.mark.parametrize("name", ["train.xx-yy.xx.bin", "train.xx-yy.xx.idx", "dict.xx.txt"])
def test_damaged_binarised_data_is_refused(data, tmp_path, name, counts):
    folder = tmp_path / "bin"
    shutil.copytree(data, folder, ignore=shutil.ignore_patterns("lm"))
    write_sums(folder)

    def load():
        dictionary = Dictionary.load(str(folder / "dict.xx.txt"))
        dataset = data_utils.load_indexed_dataset(str(folder / "train.xx-yy.xx"), dictionary)
        text = [dataset[index].tolist() for index in range(len(dataset))]
        return text, dictionary.symbols, dictionary.count

    assert refused_of(folder / name, counts, load) == counts
