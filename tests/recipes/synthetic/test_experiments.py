"""The experiments of recipes/synthetic: every layer is fitted, and mistakes are named."""

import json
import math

import pytest
import torch

from highrank_plugins.heads import build_head
from highrank_plugins.inference.collector import Collector
from recipes.synthetic.fitting import (
    DirichletSettings,
    dirichlet_targets,
    fit_contexts,
    measure_fit,
)
from tests.cli.conftest import mos
from tests.cli.test_analyse_runs import write_record
from tests.inference.checkpoints import write_checkpoint
from tests.models import small
from tests.recipes.synthetic import experiment
from tests.tasks.built import build

__all__ = ["mos"]


def result_of(folder, *words):
    """Return the numbers that an experiment writes; some draw a plot, too."""
    output, plot = folder / "out.json", folder / "plot.png"
    draws = ["--plot", plot] if words[0] in ("dirichlet", "gss-grid") else []
    done = experiment(*words, "--output", output, *draws)
    assert done.exit_code == 0, done.output
    assert not draws or plot.stat().st_size > 0
    return json.loads(output.read_text())


def test_gss_grid_correlates_records(tmp_path):
    cells = [(-1, 2, 30, 60), (-1, 3, 50, 58), (0, 2, 40, 59.5), (0, 3, 70, 57)]
    records = [
        write_record(tmp_path / f"{n}.json", rank, perplexity, c, k)
        for n, (c, k, rank, perplexity) in enumerate(cells)
    ]
    found = result_of(tmp_path, "gss-grid", *records)
    assert found["points"][1] == {"c": -1, "k": 3, "rank": 50, "perplexity": 58}
    assert found["correlation"]["r"] < -0.9
    write_record(tmp_path / "seed.json", 30, 61, -1, 2)
    said = experiment("gss-grid", *records, tmp_path / "seed.json").output
    assert f"{records[0]}: another record has its c and k, too" in said


TINY = "--classes 12 --dim 2 --steps 200 --components 3".split()
TINY_TARGETS = DirichletSettings(targets=60)


def test_targets_are_distributions_and_a_fit_is_measured_by_its_definition():
    drawn = dirichlet_targets(TINY_TARGETS, 12, 0.1)
    assert drawn.shape == (60, 12)
    torch.testing.assert_close(drawn.sum(1), torch.ones(60))
    torch.manual_seed(5)  # they are drawn from a seed of their own
    assert torch.equal(dirichlet_targets(TINY_TARGETS, 12, 0.1), drawn)
    other = DirichletSettings(targets=60, seed=1)
    assert not torch.equal(dirichlet_targets(other, 12, 0.1), drawn)
    # E Σ P² = (α + 1) / (M α + 1): peaked for a small α
    assert float(drawn.square().sum(1).mean()) == pytest.approx(1.1 / 2.2, abs=0.1)
    head = build_head("softmax", num_classes=3, feature_dim=3, bias=False)
    head.weight.data = torch.eye(3)
    contexts = torch.tensor([[0.7, 0.2, 0.1], [0.5, 0.25, 0.25]]).log()
    found = measure_fit(head, contexts, torch.tensor([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0]]))
    first = 0.5 * math.log(0.5 / 0.7) + 0.5 * math.log(0.5 / 0.2)
    assert found.mean_kl == pytest.approx((first + math.log(4)) / 2, rel=1e-6)
    assert found.mode_match == 0.5
    head = build_head("softmax", num_classes=12, feature_dim=2)
    with pytest.raises(ValueError, match=r"step 0: the loss is nan; lower lr"):
        fit_contexts(head, torch.full((60, 12), math.nan), TINY_TARGETS, batch=60)


def test_dirichlet_fits_every_head_in_several_dimensions(tmp_path):
    words = [*TINY, "--targets", 50, "--batch", 50, "--heads", "softmax,mos,mos+gss"]
    fits = result_of(tmp_path, "dirichlet", *words)["fits"]
    assert list(fits) == ["softmax", "mos", "mos+gss"]
    assert fits["mos"]["mean_kl"] < fits["softmax"]["mean_kl"]
    found = result_of(tmp_path, "dirichlet", *words, "--heads", "softmax,mos", "--dim", "4,2")
    assert found["settings"]["dim"] == [2, 4] and [*found["fits_by_dim"]] == ["2", "4"]
    narrow, wide = (found["fits_by_dim"][d]["softmax"]["mean_kl"] for d in ("2", "4"))
    assert wide < narrow


def test_multimode_fits_every_head(tmp_path):
    words = [*TINY, "--contexts", 40, "--modes", 2]
    found = result_of(tmp_path, "multimode", *words, "--heads", "softmax,mos,moc")
    fits = found["fits"]
    # words whose vectors lie apart are on top together only where probabilities are mixed
    assert fits["mos"]["recall"] > fits["softmax"]["recall"] + 0.05
    assert fits["mos"]["mean_kl"] < min(fits["softmax"]["mean_kl"], fits["moc"]["mean_kl"])
    assert all(0 <= fit["complete"] <= fit["recall"] <= 1 for fit in fits.values())
    # with a dimension for every word all modes are on top
    more = ["--heads", "softmax,mos", "--learn-words", "--dim", 12]
    fit = result_of(tmp_path, "multimode", *words, *more)["fits"]["softmax"]
    assert fit["recall"] == fit["complete"] == 1 and fit["mean_kl"] < 0.05


@pytest.mark.parametrize(("words", "message"), [
    ("multimode --modes 100", "--modes 100: must lie in [1, 100)"),
    ("multimode --heads mus", "--heads mus: expected one of"),
    ("dirichlet --alpha 0", "--alpha 0: must be above 0"),
    ("dirichlet --alpha 1,inf", "--alpha 1,inf: expected numbers separated by commas"),
    ("dirichlet --heads softmax --components 3", "--components 3: changes nothing; no layer of"),
    ("dirichlet --dim 2,4 --alpha .1,1", "--dim and --alpha: only one of them"),
    ("dirichlet --dim 2,2", "--dim 2,2: 2 is given twice; give it once"),
    ("spamlang --dim 8 --backward-rank 0", "must lie in [1, 8)"),
    ("spamlang --lr 0", "--lr 0.0: must be above 0"),
    ("spamlang --lr 1e20 --heads softmax --classes 5 --dim 2", "the loss is nan; lower --lr"),
])  # fmt: skip
def test_bad_options_are_refused(words, message):
    done = experiment(*words.split())
    assert done.exit_code == 2 and message in done.output


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
