"""The experiments of recipes/synthetic: every layer is fitted, and mistakes are named."""

import json
import math

import pytest
import torch

from highrank_plugins.heads import build_head
from highrank_plugins.reports import plots
from recipes.synthetic.fitting import (
    DirichletSettings,
    dirichlet_targets,
    fit_contexts,
    measure_fit,
)
from tests.cli.test_analyse_runs import write_record
from tests.recipes.synthetic import experiment


def result_of(folder, *words):
    """Return the numbers that an experiment writes; it draws a plot, too."""
    output, plot = folder / "out.json", folder / "plot.png"
    done = experiment(*words, "--output", output, "--plot", plot)
    assert done.exit_code == 0, done.output
    assert plot.stat().st_size > 0
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
    write_record(tmp_path / "other.json", 3, 3)
    done = experiment("gss-grid", *records, tmp_path / "other.json")
    assert done.exit_code == 2 and "other.json: its configuration has no train.head_gss_c" in (
        done.output
    )


TINY = "--classes 12 --dim 2 --steps 200 --components 3".split()
TINY_TARGETS = DirichletSettings(targets=60, classes=12)


def test_targets_are_distributions_drawn_from_their_own_seed():
    targets = dirichlet_targets(TINY_TARGETS)
    assert targets.shape == (60, 12)
    torch.testing.assert_close(targets.sum(1), torch.ones(60))
    torch.manual_seed(5)
    assert torch.equal(dirichlet_targets(TINY_TARGETS), targets)
    assert not torch.equal(
        dirichlet_targets(DirichletSettings(targets=60, classes=12, seed=1)), targets
    )
    # E Σ P² = (α + 1) / (M α + 1): peaked for a small α
    assert float(targets.square().sum(1).mean()) == pytest.approx(1.1 / 2.2, abs=0.1)


def test_a_fit_is_measured_by_its_definition():
    head = build_head("softmax", num_classes=3, feature_dim=3, bias=False)
    head.weight.data = torch.eye(3)
    contexts = torch.tensor([[0.7, 0.2, 0.1], [0.5, 0.25, 0.25]]).log()
    targets = torch.tensor([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0]])
    found = measure_fit(head, contexts, targets)
    first = 0.5 * math.log(0.5 / 0.7) + 0.5 * math.log(0.5 / 0.2)
    assert found.mean_kl == pytest.approx((first + math.log(4)) / 2, rel=1e-6)
    assert found.mode_match == 0.5
    with pytest.raises(ValueError, match=r"step 0: the loss is nan; lower lr"):
        head = build_head("softmax", num_classes=12, feature_dim=2)
        fit_contexts(head, torch.full((60, 12), math.nan), TINY_TARGETS, batch=60)


def test_dirichlet_fits_every_head_in_several_dimensions(tmp_path):
    words = [*TINY, "--targets", 50, "--batch", 50, "--heads", "softmax,mos,mos+gss"]
    fits = result_of(tmp_path, "dirichlet", *words)["fits"]
    assert list(fits) == ["softmax", "mos", "mos+gss"]
    assert fits["mos"]["mean_kl"] < fits["softmax"]["mean_kl"]
    words = ["--classes", 12, "--steps", 200, "--targets", 50, "--heads", "softmax,mos"]
    found = result_of(tmp_path, "dirichlet", *words, "--dim", "4,2")
    assert found["settings"]["dim"] == [2, 4] and [*found["fits_by_dim"]] == ["2", "4"]
    narrow, wide = (found["fits_by_dim"][d]["softmax"]["mean_kl"] for d in ("2", "4"))
    assert wide < narrow


@pytest.mark.parametrize(
    ("name", "values", "keys"),
    [("classes", "12,8", ["8", "12"]), ("alpha", "1,.1", ["0.1", "1.0"])],
)
def test_dirichlet_varies_one_of_its_settings(tmp_path, monkeypatch, name, values, keys):
    drawn, draw = [], plots.draw
    monkeypatch.setattr(plots, "draw", lambda *words: drawn.extend(words[1:]) or draw(*words))
    words = ["--steps", 20, "--targets", 20, "--heads", "softmax", "--dim", 2, f"--{name}", values]
    found = result_of(tmp_path, "dirichlet", *words)[f"fits_by_{name}"]
    assert [*found] == keys
    assert [figure.axes[1] for figure in drawn] == ["share of matched modes", "mean KL, nats"]
    kls = [found[key]["softmax"]["mean_kl"] for key in keys]
    assert drawn[1].series["softmax"] == ([float(key) for key in keys], kls)


def test_multimode_fits_every_head(tmp_path):
    words = [*TINY, "--contexts", 40, "--modes", 2]
    found = result_of(tmp_path, "multimode", *words, "--heads", "softmax,mos,moc")
    fits = found["fits"]
    # words whose vectors lie apart are on top together only where probabilities are mixed
    assert fits["mos"]["recall"] > fits["softmax"]["recall"] + 0.05
    assert fits["mos"]["mean_kl"] < min(fits["softmax"]["mean_kl"], fits["moc"]["mean_kl"])
    assert all(0 <= fit["complete"] <= fit["recall"] <= 1 for fit in fits.values())
    learnt = result_of(tmp_path, "multimode", *words, "--heads", "softmax", "--learn-words")
    assert learnt["fits"]["softmax"]["mean_kl"] < fits["softmax"]["mean_kl"]
    # with a dimension for every word all modes are on top
    wide = result_of(tmp_path, "multimode", *words, "--heads", "softmax", "--dim", 12)
    fit = wide["fits"]["softmax"]
    assert fit["recall"] == fit["complete"] == 1
    assert fit["mean_kl"] < 0.05


@pytest.mark.parametrize(("words", "message"), [
    (["multimode", "--modes", 100], "--modes 100: must lie in [1, 100)"),
    (["multimode", "--heads", "mus"], "--heads mus: expected one of"),
    (["dirichlet", "--heads", "mos+x"], "--heads mos+x: expected one of"),
    (["dirichlet", "--alpha", 0], "--alpha 0: must be above 0"),
    (["dirichlet", "--classes", "1"], "--classes 1: must be at least 2"),
    (["dirichlet", "--dim", "2,4", "--alpha", ".1,1"], "--dim and --alpha: only one of them"),
    (["dirichlet", "--dim", "2,x"], "--dim 2,x: expected whole numbers separated by commas"),
    (["dirichlet", "--dim", "0,2"], "--dim 0,2: must be at least 1"),
    (["dirichlet", "--dim", "2,2"], "--dim 2,2: 2 is given twice; give it once"),
    (["multimode", "--heads", "mos,"], "--heads mos,: expected names separated by commas"),
    (["spamlang", "--heads", "mos, mos"], "--heads mos, mos: mos is given twice"),
    (["spamlang", "--dim", "8", "--backward-rank", "0"], "must lie in [1, 8)"),
    (["spamlang", "--dim", "4,8", "--backward-rank", "2,8"], "--backward-rank 8: must lie in"),
    (["spamlang", "--classes", 0], "must be at least 2"),
    (["spamlang", "--dim", 0], "must be at least 1"),
    (["spamlang", "--heads", "moz"], "moz"),
    (["spamlang", "--lr", 0], "--lr 0.0: must be above 0"),
])  # fmt: skip
def test_bad_options_are_refused(words, message):
    done = experiment(*words)
    assert done.exit_code == 2 and message in done.output
