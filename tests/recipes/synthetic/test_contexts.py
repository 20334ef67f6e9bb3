"""`python -m recipes.synthetic contexts`: the rank of the word after contexts of a user."""

import gzip

import pytest
import torch

from highrank_plugins.inference.collector import Collector
from recipes.synthetic.contexts import read_contexts
from tests.cli.conftest import mos
from tests.fairseq_cli import REPOSITORY
from tests.inference.checkpoints import write_checkpoint
from tests.models import small
from tests.recipes.synthetic import experiment
from tests.recipes.synthetic.test_experiments import result_of
from tests.tasks.built import build

__all__ = ["mos"]


@pytest.fixture(scope="module")
def softmax(stream_data, tmp_path_factory):
    built = build(stream_data)
    return write_checkpoint(tmp_path_factory.mktemp("softmax") / "a.pt", built), stream_data


def refused(said, *words):
    done = experiment("contexts", *words)
    assert done.exit_code == 2 and said in done.output, done.output


def test_a_users_contexts_are_continued(softmax, mos, tmp_path):
    file = tmp_path / "contexts.txt"
    file.write_text("the cat dog tree\nthe <- red in\n")
    for checkpoint, data in (softmax, mos):
        words = [checkpoint, data, file, "--top", 3]
        found = result_of(tmp_path, "contexts", *words)
        assert [c["word"] for c in found["contexts"]] == ["tree", "the"]
        for context in found["contexts"]:
            assert (context["rank"] < 3) == (context["word"] in context["top"])
        assert found["share"] == sum(c["rank"] < 3 for c in found["contexts"]) / 2
    for text, said in (
        (b"cat\n", "1: expected a context and the word"),
        (b"the cat\ncow the\n", "2: 'cow' is not in the dictionary; write <unk>"),
        (b"the cat\nthe <pad> cat\n", "2:5: the text has the word <pad>, which fairseq reserves"),
        (b"the cat\nthe c\xfct\n", "2:6: byte 0xfc is not UTF-8"),
    ):
        file.write_bytes(text)
        refused(f"{file}:{said}", *words)


def test_a_context_longer_than_the_positions_of_the_model_is_refused(stream_data, tmp_path):
    words = ["--tokens-per-sample", "4", "--decoder-layers", "1", "--decoder-ffn-embed-dim", "8"]
    built = small.build(stream_data, "transformer_lm", *words)
    path = write_checkpoint(tmp_path / "a.pt", built)
    file = tmp_path / "contexts.txt"
    file.write_text("the cat the cat\n")
    assert len(result_of(tmp_path, "contexts", path, stream_data, file)["contexts"]) == 1
    file.write_text("the cat\nthe cat the cat the\n")
    refused(f"{file}:2: 5 tokens, and the model reads 4", path, stream_data, file)


def test_the_state_is_carried_to_contexts_of_the_text(softmax, tmp_path):
    """Compare with the predictions of a pass over the text."""
    collector = Collector.open(*softmax, "test", rows=7)
    blocks = list(collector.blocks())
    target = torch.cat([block.target for block in blocks])
    log_probs = torch.cat([block.log_probs for block in blocks])
    file, position = tmp_path / "contexts.txt", 30
    names = [collector.dictionary[word] for word in target[position - 9 : position + 1].tolist()]
    assert "</s>" in names
    file.write_text(" ".join(names).replace("</s>", "<eos>") + "\n")
    count = len(collector.dictionary)
    words = [*softmax, file, "--top", count]
    (found,) = result_of(tmp_path, "contexts", *words, "--split", "test")["contexts"]
    order = log_probs[position].argsort(descending=True, stable=True)
    best = [collector.dictionary[word] for word in order.tolist()]
    assert found["top"] == ["<eos>" if word == "</s>" else word for word in best]
    assert "<eos>" in found["top"]
    assert order[found["rank"]] == target[position]
    file.write_text("the the the the the the\n")
    refused(f"{file}:1: not in the split test: copy", *words, "--split", "test")


def test_the_published_contexts_of_penn_treebank_are_accepted():
    """Check the words that follow, which Yang et al. 2018 print, and that each spans two lines.

    The paper's first two contexts end in the same word.
    """
    file = REPOSITORY / "recipes" / "ptb" / "contexts_yang2018.txt"
    found = [*read_contexts(file).values()]
    words = ["tons", "a", "african", "ual", "conspiracy", "subsidies"]
    assert [context[-1] for context in found] == words
    assert [context.count("<eos>") for context in found] == [1] * 6
    assert [context[-4:-1] for context in found[:2]] == [["total", "of", "N"], ["top", "$", "N"]]
    text = REPOSITORY.parent / "shared" / "data" / "ptb" / "test.txt.gz"
    if text.is_file():  # Penn Treebank is not ours to distribute
        lines = gzip.decompress(text.read_bytes()).decode().replace("\n", "<eos> ")
        assert all(f" {' '.join(context)} " in " ".join(lines.split()) for context in found)
