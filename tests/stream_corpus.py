"""A small running text with <unk>, binarised once a session, and training runs on its streams."""

import random
from pathlib import Path

import pytest

from tests.fairseq_cli import Finished, run

WORDS = "the a cat dog house tree sees eats likes big small red in on under <unk>".split()
LINES = {"train": 90, "valid": 17, "test": 11}
SHAPE = """--decoder-embed-dim 8 --decoder-hidden-size 12 --decoder-last-hidden-size 8
    --decoder-layers 2 --dropout 0.2 --dropouti 0.1 --dropouth 0.1 --dropoute 0.1
    --wdrop 0.2""".split()
CERTAIN = "--dropout 0 --dropouti 0 --dropouth 0 --dropoute 0 --wdrop 0".split()
LOSS = "--criterion bptt_cross_entropy --ar-alpha 2 --tar-beta 1".split()
STREAMS = """--task bptt_language_modeling --bptt 8 --optimizer nt_asgd --lr 2 --clip-norm 0.25
    --weight-decay 1.2e-6 --batch-size 4 --num-workers 0 --no-progress-bar --log-interval 1
    --no-epoch-checkpoints --seed 5""".split()


def write_text(folder: Path, lines: dict[str, int] = LINES) -> Path:
    """Write sentences that continue the one before, so that a carried state helps."""
    draw = random.Random(2)
    for name, count in lines.items():
        first = draw.randrange(len(WORDS))
        sentences = []
        for _ in range(count):
            words = [WORDS[(first + 3 * i) % len(WORDS)] for i in range(draw.randint(2, 9))]
            first += draw.choice([1, 1, 5])
            sentences.append(" ".join(words))
        (folder / f"{name}.txt").write_text("\n".join(sentences) + "\n")
    return folder


def binarise(folder: Path, *options: object) -> Path:
    """Make `folder/bin` from the texts of `write_text`."""
    prefixes = [x for s in LINES for x in (f"--{s}pref", folder / f"{s}.txt")]
    run("preprocess", "--only-source", *prefixes, *options, "--destdir", folder / "bin")
    return folder / "bin"


@pytest.fixture(scope="session")
def stream_data(tmp_path_factory) -> Path:
    """Write the binarised text."""
    return binarise(write_text(tmp_path_factory.mktemp("streams")))


def train_streams(
    data: Path, save_dir: Path, *options: object, arch: str = "awd_lstm_lm_softmax"
) -> Finished:
    """Run fairseq-train on streams; later options win."""
    where = [data, "--save-dir", save_dir, "--arch", arch]
    return run("train", *where, *SHAPE, *LOSS, *STREAMS, *options)
