"""Execute every block of the tutorials: on tiny text, or as they are with --run-long.

So are the first own training run, the README, and Python in the guides. A page marks what the tests
need to know in comments that no reader sees:

    <!-- file: NAME -->     the next block is the content of this file
    <!-- skip -->           the next block is not run
    <!-- tiny: A → B -->    replace A by B in the next block, unless the tutorial is run whole
"""

import math
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.recipes.running import run
from tests.stream_corpus import write_text

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
BLOCK = re.compile(r"((?:<!--[^\n]+-->\n)*)```(python|bash)\n(.*?)```", re.DOTALL)
# a language model of a few words, instead of half an hour of training
TINY = """corpus.vocab_size=12 corpus.other_text=true decoder_embed_dim=8 decoder_hidden_size=8
    decoder_last_hidden_size=8 bptt=5 batch_size=2 eval_streams=2 max_epoch=1 asgd_at_epoch=1
    spectrum.tokens=40 kld.tokens=40 retention.tokens=40"""
TINY_SETTINGS = " ".join(f"--set {setting}" for setting in TINY.split())

pytestmark = [pytest.mark.xdist_group("tutorials"), pytest.mark.timeout(1800)]


def blocks_of(page: Path, tiny: bool) -> list[tuple[str, str, str]]:
    """Return language, text and file name (or nothing) of each block that is to be run."""
    found = []
    for comments, language, text in BLOCK.findall(page.read_text(encoding="utf-8")):
        notes = re.findall(r"<!-- (\w+)(?:: (.*))? -->", comments)
        for kind, value in notes:
            if kind == "tiny" and tiny:
                old, new = value.split(" → ")
                assert old in text, f"{page.name}: no {old!r} in the block"
                text = text.replace(old, new.replace("TINY_SETTINGS", TINY_SETTINGS))
        if not any(kind == "skip" for kind, _ in notes):
            found.append((language, text, dict(notes).get("file", "")))
    return found


def follow(page: str, folder: Path, tiny: bool, only: str = "") -> str:
    """Do in a folder what a page says, or its blocks of one language; return what was printed."""
    printed = ""
    binaries = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for language, text, name in blocks_of(DOCS / page, tiny):
        if only and language != only:
            continue
        if name:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
            continue
        bash, python = ["bash", "-eo", "pipefail", "-c"], [sys.executable, "-c"]
        program = bash if language == "bash" else python
        printed += run([*program, text], folder=folder, PATH=binaries).stdout
    return printed


@pytest.mark.parametrize(
    "tiny", [pytest.param(True, id="tiny"), pytest.param(False, id="whole", marks=pytest.mark.long)]
)
def test_the_tutorials_and_the_guides_that_use_their_translator_work(tiny, tmp_path):
    folder, best = tmp_path / "translator", "checkpoints/checkpoint_best.pt"
    folder.mkdir()
    printed = follow("tutorials/translator.md", folder, tiny)
    assert re.search(r"^D-0\s", printed, re.MULTILINE) and "sacrebleu" in printed.lower()
    assert (folder / best).is_file()
    if not tiny:
        assert float(re.findall(r"sacrebleu ([\d.]+)", printed, re.IGNORECASE)[0]) > 90
    assert "predictions" in follow("tutorials/read_card.md", folder, tiny)
    assert "mixtape" in (folder / "card.html").read_text(encoding="utf-8").lower()
    printed = follow("tutorials/own_layer.md", folder, tiny)
    losses = re.findall(r"^(?:reference|chunked|fused) ([\d.]+) ", printed, re.MULTILINE)
    assert len(losses) == 3
    assert max(map(float, losses)) - min(map(float, losses)) < 1e-9
    assert '"perplexity"' in printed and "| softmax_ptb" in printed
    if tiny:
        return
    shutil.copy(folder / best, folder)
    words = "analyse collect checkpoint_best.pt data-bin --output collected --what log_probs"
    run([sys.executable, "-m", "highrank_plugins.cli", *words.split()], folder=folder)
    for guide in ("card", "measure"):
        follow(f"howto/{guide}.md", folder, tiny=False, only="python")
    own = shutil.copytree(folder / "text", tmp_path / "own")
    # twenty epochs of a Transformer of the papers' size would take hours
    assert "sacrebleu" in follow("howto/own_text.md", own, tiny=True).lower()
    assert (own / best).is_file()


@pytest.mark.long
def test_the_page_on_transformer_language_models_works(tmp_path):
    for part in ("train", "valid", "test"):
        shutil.copy(ROOT / "tests" / "text" / "tiny" / f"{part}.en", tmp_path)
    printed = follow("howto/transformer_lm.md", tmp_path, tiny=True)
    assert re.search(
        r"^test\.en: \d+ lines, [\d,]+ tokens with </s>, 0\.00% unknown$", printed, re.M
    )
    (per_piece,) = map(float, re.findall(r"^test_perplexity ([\d.]+) tokens:", printed, re.M))
    (per_word,) = map(float, re.findall(r"^word_perplexity ([\d.]+) text_words:", printed, re.M))
    (bits,) = re.findall(r"^bits_per_byte ([\d.]+) bytes:(\d+)", printed, re.M)
    text = (tmp_path / "test.en").read_text(encoding="utf-8")
    words = len(text.split()) + text.count("\n")
    total = float(bits[0]) * len(text.encode())
    assert bits[1] == f"{len(text.encode())}"
    assert math.log2(per_word) == pytest.approx(total / words, rel=2e-3)
    assert 1 < per_piece < per_word
    assert re.search(r"^D-1\t\S+\t.* new", printed, re.M)  # no tiny line has a T


@pytest.mark.long  # four whole recipes: minutes, even of a few words
def test_the_tutorial_on_a_papers_row_works(tmp_path):
    (tmp_path / "ptb").mkdir()
    write_text(tmp_path / "ptb")
    shutil.copytree(ROOT / "recipes", tmp_path / "recipes")
    (tmp_path / ".venv").symlink_to(Path(sys.prefix))
    printed = follow("tutorials/paper_row.md", tmp_path, tiny=True)
    assert "| mos | 2 |" in printed and "| softmax | 2 |" in printed


def test_python_in_the_readme_works():
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    names: dict = {}
    exec(code, names)
    assert names["loss"].item() == pytest.approx(math.log(10_000), abs=0.5)
    assert names["embedding"].weight.grad is not None
    assert names["log_probs"].shape == (1, 20, 10_000)
