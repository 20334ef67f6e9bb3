"""SpamLang of recipes/synthetic, its grid, the command, and the recipe."""

import json
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import one_hot

from highrank_plugins.analysis.retention import column_space, logit_gradient, retained_by_head
from highrank_plugins.analysis.statistics import student_t
from highrank_plugins.cli import as_command, make_group
from highrank_plugins.cli.options import option_problems
from highrank_plugins.common.blocks import read_tree
from highrank_plugins.heads import build_head
from recipes.synthetic import spamlang_grid
from recipes.synthetic.__main__ import EXPERIMENTS
from recipes.synthetic.spamlang import (
    SpamLangRun,
    SpamLangSettings,
    retention_at_features,
    retentions,
    spamlang,
    with_low_rank_gradient,
)
from recipes.synthetic.spamlang_grid import grid_table
from tests.held_lock import held_elsewhere
from tests.recipes.running import RECIPES, recipe, refused, run
from tests.recipes.synthetic import experiment

TINY = SpamLangSettings(classes=20, dim=8, steps=200, lr=1e-2)


@pytest.fixture
def case():
    draw = torch.Generator().manual_seed(1)
    features = torch.randn(5, 6, generator=draw, dtype=torch.float64)
    return features, torch.randint(30, (5,), generator=draw)


def layer(name):
    torch.manual_seed(2)
    return build_head(name, num_classes=30, feature_dim=6).double()


@pytest.mark.parametrize("name", ["softmax", "moc", "mos", "mixtape"])
def test_retention_at_features_is_a_projection_onto_the_slopes(case, name):
    features, target = case
    head = layer(name)
    tensors = {key: tensor.detach() for key, tensor in head.tensors().items()}
    kept = whole = 0.0
    for one, word in zip(features, target, strict=True):
        slopes = torch.autograd.functional.jacobian(
            lambda x: head.logit_vectors(x[None], tensors).reshape(-1), one
        )
        rows = logit_gradient(head, one[None], word[None]).reshape(-1)
        basis, _ = torch.linalg.qr(slopes)
        kept += float((rows @ basis).square().sum())
        whole += float(rows.square().sum())
    found = retention_at_features(head, features, target)
    assert found == pytest.approx((kept / whole) ** 0.5, rel=1e-9)
    basis = column_space(head.weight).to_basis
    kept, whole = retained_by_head(head, basis, features, target, 10**6)
    contexts = float((kept.sum() / whole.sum()).sqrt())
    assert found <= contexts + 1e-9
    assert name != "softmax" or (found == pytest.approx(contexts, rel=1e-9) and 0 < found < 1)


def test_only_the_largest_directions_let_the_gradient_pass_which_the_retention_says(case):
    features, text = case
    head = layer("softmax")
    weight, gradient = head.weight.detach(), torch.randn(5, 30).double()
    left, _, _ = torch.linalg.svd(weight, full_matrices=False)
    of_loss = head.log_probs(features).exp().detach() - one_hot(text, 30)
    for rank in (1, 3, 6):
        x = features.clone().requires_grad_()
        passed = with_low_rank_gradient(x, weight, rank)
        assert torch.equal(passed, features)
        (passed @ weight.T).backward(gradient)
        kept = left[:, :rank]
        torch.testing.assert_close(x.grad, gradient @ kept @ kept.T @ weight)
        found = retentions(lambda _: features[:, None], head, text[:, None], rank)
        want = float((of_loss @ kept).norm() / of_loss.norm())
        assert found == pytest.approx((want, want), rel=1e-6)


def test_a_layer_learns_reproducibly_and_a_control_of_full_rank_equals_the_softmax(monkeypatch):
    found = spamlang({"name": "softmax"}, TINY)
    assert found.steps is not None and found.steps % TINY.every == 0 and found.accuracy >= 0.99
    assert found == spamlang({"name": "softmax"}, TINY)
    short = SpamLangSettings(classes=20, dim=8, steps=3)
    assert spamlang({"name": "mos"}, short).steps is None
    run = spamlang({"name": "softmax"}, replace(short, classes=50, dim=4))
    assert run.accuracy < 0.5
    sought: list[float] = []  # the last evaluation reads all texts
    with monkeypatch.context() as patch:
        patch.setattr(
            f"{spamlang.__module__}._evaluate", lambda *given: sought.append(given[3]) or (0.6, 0)
        )
        spamlang({"name": "softmax"}, replace(TINY, steps=3, every=1))
    assert sought == [0.99, 0.99, 0]
    full = spamlang({"name": "softmax"}, replace(TINY, backward_rank=8))
    assert full.steps == found.steps and full.contexts == pytest.approx(found.contexts)
    low = spamlang({"name": "softmax"}, replace(TINY, backward_rank=2))
    assert low.contexts < found.contexts and (low.steps or 10**6) > found.steps


def command(*words, code=0):
    words = ("--classes", "20", "--dim", "4,8", "--steps", "20", *words)
    done = experiment("spamlang", *words)
    assert done.exit_code == code, done.output
    return done.output


def runs_of(layer: str, steps: list[int | None]) -> list[dict]:
    shares = ("accuracy", "contexts", "features")
    case = {"classes": 20, "dim": 4, "layer": layer, "setup": {"settings": {"steps": 900}}}
    return [case | dict.fromkeys(shares, 0.5) | {"steps": one} for one in steps]


def test_layers_whose_runs_all_end_are_compared_with_the_softmax():
    steps = {"softmax": [100, 110, 120], "mos": [150, 160, 140], "moc": [110, 130, 120],
             "mixtape": [150, None, 140]}  # fmt: skip
    runs = [run for layer, one in steps.items() for run in runs_of(layer, one)]
    printed = grid_table(runs)
    rows = [row.split(" | ") for row in printed.splitlines()[2:6]]
    assert rows[0][-1].startswith("0.500")
    p = [student_t(steps[layer], steps["softmax"]).p_value for layer in ("mos", "moc")]
    assert p[0] < p[1]
    assert {row[2]: row[4] for row in rows} == {
        "softmax": "–", "mos": f"{2 * p[0]:.2g}", "moc": f"{p[1]:.2g}", "mixtape": "–",
    }  # fmt: skip
    assert "adjusted for 2 comparisons (Holm)" in printed


@pytest.fixture
def untrained(monkeypatch):
    """Return the settings of the runs so far; a run with 20 steps or fewer does not learn."""
    seen = []

    def run(options, settings):
        seen.append(settings)
        steps = 30 if settings.steps > 20 else None
        return SpamLangRun(steps, 0.5, 1.0, 0.3, 0.2)

    monkeypatch.setattr(spamlang_grid, "spamlang", run)
    return seen


@pytest.mark.parametrize("file", sorted((RECIPES / "synthetic" / "conf").glob("*.yaml")))
def test_every_grid_that_is_shipped_is_accepted(file):
    command = as_command(make_group(EXPERIMENTS)).get_command(None, "spamlang")
    assert [*option_problems(command, read_tree(file).values)] == []


def test_a_file_gives_defaults_and_its_mistakes_are_named(tmp_path, untrained):
    file = tmp_path / "grid.yaml"
    file.write_text("heads: softmax,moc\nseeds: 1\nsteps: 30\n")
    command("--conf", file)  # which has --steps 20 of its own
    assert [one.steps for one in untrained] == [20] * 4
    for text, said in (
        ("heads: softmax\nstepps: 3\nlr: fast\n", "2: stepps: No such option: --stepps"),
        (f"conf: {file}\n", "1: conf: write `base: FILE`"),
    ):
        file.write_text(text)
        assert f"{file}:{said}" in command("--conf", file, code=2)


def test_a_grid_repeats_only_runs_that_have_not_learnt_with_more_steps(
    tmp_path, untrained, monkeypatch
):
    """A finished run is kept after an interruption, and other settings are not mixed."""
    file = tmp_path / "new" / "runs.json"
    words = ["--heads", "softmax", "--seeds", "1,2", "--output", file]
    said = command(*words, "--table-only", code=2)
    assert "--table-only needs --output FILE" in said
    with held_elsewhere(file.with_name(".runs.json.lock")):
        assert f"--output {file} is in use by another" in command(*words, code=2)
        assert not untrained and not file.exists()
    run = spamlang_grid.spamlang

    def interrupted(options, settings):
        if len(untrained) == 3:
            raise SystemExit(143)
        return run(options, settings)

    monkeypatch.setattr(spamlang_grid, "spamlang", interrupted)
    command(*words, code=143)
    monkeypatch.setattr(spamlang_grid, "spamlang", run)
    for steps, count in (("20", 4), ("30", 8), ("40", 8), ("10", 8)):
        command(*words, "--steps", steps)
        assert len(untrained) == count, steps
    assert len(json.loads(file.read_text())["runs"]) == 4
    said = command(*words, "--backward-rank", "4")
    runs = json.loads(file.read_text())["runs"]
    assert len(runs) == 6 and runs[-1]["layer"] == "softmax, gradient of rank 4"
    assert runs[-1]["dim"] == 8  # at d = 4 it would be the softmax
    assert grid_table(runs) in said
    with held_elsewhere(file.with_name(".runs.json.lock")):  # it only reads
        assert "| 20 | 8 | softmax |" in command(*words, "--seeds", "1,2,3", "--table-only")
    assert "lr 0.01, not 0.1" in command(*words, "--lr", "0.1", code=2)
    words[1] = "mos"
    command(*words)
    assert "components None, not 2" in command(*words, "--components", "2", code=2)
    for text in ("{", "[]", '{"runs": 3}', '{"runs": [{"layer": "mos"}]}'):
        file.write_text(text)
        said = command("--output", file, code=2)
        assert str(file) in said and said.count("\n") == 1 and file.read_text() == text


def test_the_recipe_trains_the_grid_then_writes_the_table_and_wrong_use_runs_nothing(tmp_path):
    grid = [f"{name}={value}" for name, value in (("classes", 20), ("dim", 4), ("steps", 10))]

    def words(*words, settings=("heads=softmax", "seeds=1", "backward_rank=2", *grid)):
        return recipe("synthetic", "--exp-dir", tmp_path, *words, settings=[*settings])

    refused(words(settings=["lr"]), "--set 'lr': write --set KEY=VALUE")
    refused(words("--stage", "1"), "start with --stage 0")
    folder = tmp_path / "synthetic" / "small"
    assert not folder.exists()
    refused(words("--set", "lr=0"), "--lr 0.0: must be above 0")
    assert not (folder / "table.md").exists()
    assert run(words()).stdout == f"{folder}/table.md\n"
    table = (folder / "table.md").read_text()
    assert "| 20 | 4 | softmax, gradient of rank 2 | > 10" in table
    assert len(json.loads((folder / "results.json").read_text())["runs"]) == 2
    assert (folder / "steps.svg").exists()
    (folder / "table.md").unlink()
    run(words("--stage", "1"))
    assert (folder / "table.md").read_text() == table
