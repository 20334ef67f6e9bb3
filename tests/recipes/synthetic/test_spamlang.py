"""SpamLang of recipes/synthetic, its grid, and the command."""

import json
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import one_hot

from highrank_plugins.analysis.retention import column_space, logit_gradient, retained_by_head
from highrank_plugins.analysis.statistics import student_t
from highrank_plugins.heads import build_head
from recipes.synthetic import spamlang_grid
from recipes.synthetic.spamlang import (
    SpamLangRun,
    SpamLangSettings,
    SymbolTrunk,
    _evaluate,
    retention_at_features,
    retentions,
    spamlang,
    with_low_rank_gradient,
)
from recipes.synthetic.spamlang_grid import grid_figures, grid_table
from tests.held_lock import held_elsewhere
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


def at_contexts(head, features, target):
    kept, whole = retained_by_head(
        head, column_space(head.weight).to_basis, features, target, 10**6
    )
    return float((kept.sum() / whole.sum()).sqrt())


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
    contexts = at_contexts(head, features, target)
    assert found <= contexts + 1e-9
    assert name != "softmax" or (found == pytest.approx(contexts, rel=1e-9) and 0 < found < 1)


@pytest.mark.parametrize("rank", [1, 3, 6])
def test_only_the_largest_directions_let_the_gradient_pass(case, rank):
    features = case[0].requires_grad_()
    weight, gradient = torch.randn(30, 6).double(), torch.randn(5, 30).double()
    passed = with_low_rank_gradient(features, weight, rank)
    assert torch.equal(passed, features)
    (passed @ weight.T).backward(gradient)
    left, _, _ = torch.linalg.svd(weight, full_matrices=False)
    kept = left[:, :rank]
    torch.testing.assert_close(features.grad, gradient @ kept @ kept.T @ weight)


@pytest.mark.parametrize("rank", [1, 3])
def test_the_retention_of_a_control_is_that_of_the_largest_directions(case, rank):
    features, text = case
    head = layer("softmax")
    found = retentions(lambda _: features[:, None], head, text[:, None], rank)
    gradient = head.log_probs(features).exp().detach() - one_hot(text, 30)
    left, _, _ = torch.linalg.svd(head.weight.detach(), full_matrices=False)
    want = float((gradient @ left[:, :rank]).norm() / gradient.norm())
    assert found == pytest.approx((want, want), rel=1e-6)


def test_an_evaluation_ends_where_the_goal_is_out_of_reach(monkeypatch):
    torch.manual_seed(3)
    trunk, head = SymbolTrunk(30, 6, 4), layer("mos").float()
    text = torch.randint(30, (512, 1)).expand(512, 4)
    right = head.top_k(trunk(text), 1)[1].squeeze(-1) == text
    loss = head.nll(trunk(text), text, reduction="mean").loss
    assert _evaluate(trunk, head, text, 0) == pytest.approx((right.double().mean(), loss))
    first = right[:64].double().mean()
    assert _evaluate(trunk, head, text, 0.99)[0] == pytest.approx(first) and first < 0.5
    # the last evaluation reads all texts
    sought = []
    monkeypatch.setattr(
        f"{spamlang.__module__}._evaluate", lambda *given: sought.append(given[3]) or (0, 0)
    )
    spamlang({"name": "softmax"}, replace(TINY, steps=2, every=1))
    assert sought == [0.5, 0]


def test_a_layer_learns_reproducibly_and_a_control_of_full_rank_equals_the_softmax():
    found = spamlang({"name": "softmax"}, TINY)
    assert found.steps is not None and found.steps % TINY.every == 0 and found.accuracy >= 0.99
    assert found == spamlang({"name": "softmax"}, TINY)
    short = SpamLangSettings(classes=20, dim=8, steps=3)
    assert spamlang({"name": "mos"}, short).steps is None
    full = spamlang({"name": "softmax"}, replace(TINY, backward_rank=8))
    assert full.steps == found.steps and full.contexts == pytest.approx(found.contexts)
    low = spamlang({"name": "softmax"}, replace(TINY, backward_rank=2))
    assert low.contexts < found.contexts and (low.steps or 10**6) > found.steps


def command(*words):
    return experiment("spamlang", "--classes", "20", "--dim", "4,8", "--steps", "20", *words)


def test_the_command_does_not_repeat_a_run(tmp_path):
    file = tmp_path / "runs.json"
    done = command("--heads", "softmax,moc", "--seeds", "1,2", "--output", file)
    assert done.exit_code == 0, done.output
    assert "| 20 | 4 | softmax | > 20 (0 of 2 runs are faster) |" in done.stdout
    done = command(
        "--heads", "moc,softmax", "--seeds", "1", "--backward-rank", "4", "--output", file
    )
    runs = json.loads(file.read_text())["runs"]
    assert len(runs) == 9 and runs[-1]["layer"] == "softmax, gradient of rank 4"
    assert runs[-1]["dim"] == 8  # at d = 4 it would be the softmax
    assert grid_table(runs) in done.stdout
    more = ["--heads", "softmax,moc", "--seeds", "1", "--context-scale", 4, "--output", file]
    assert "moc, contexts × 4" in command(*more).stdout
    assert len(json.loads(file.read_text())["runs"]) == 11


def runs_of(layer: str, steps: list[int | None]) -> list[dict]:
    shares = ("accuracy", "contexts", "features", "contexts_half", "features_half")
    case = {"classes": 20, "dim": 4, "layer": layer, "setup": {"settings": {"steps": 900}}}
    return [case | dict.fromkeys(shares, 0.5) | {"steps": one} for one in steps]


def test_shares_at_a_half_that_is_not_reached_are_unknown():
    run = spamlang({"name": "softmax"}, SpamLangSettings(classes=50, dim=4, steps=2))
    assert run.accuracy < 0.5
    assert run.contexts_half is None and run.features_half is None
    one, other = runs_of("softmax", [100, 110])
    other["contexts_half"] = None
    cells = grid_table([one, other]).splitlines()[2].split(" | ")
    assert cells[-2] == "–" and cells[-1].startswith("0.500")


def test_layers_whose_runs_all_end_are_compared_with_the_softmax():
    steps = {"softmax": [100, 110, 120], "mos": [150, 160, 140], "moc": [110, 130, 120],
             "mixtape": [150, None, 140]}  # fmt: skip
    printed = grid_table([run for layer, one in steps.items() for run in runs_of(layer, one)])
    column = {row.split(" | ")[2]: row.split(" | ")[4] for row in printed.splitlines()[2:6]}
    p = [student_t(steps[layer], steps["softmax"]).p_value for layer in ("mos", "moc")]
    assert p[0] < p[1]
    assert column == {"softmax": "–", "mos": f"{2 * p[0]:.2g}", "moc": f"{p[1]:.2g}",
                      "mixtape": "–"}  # fmt: skip
    assert "adjusted for 2 comparisons (Holm)" in printed


@pytest.fixture
def untrained(monkeypatch):
    """Return the settings of the runs so far; a run with 20 steps or fewer does not learn."""
    seen = []

    def run(options, settings):
        seen.append(settings)
        steps = 30 if settings.steps > 20 else None
        return SpamLangRun(steps, 0.5, 1.0, 0.3, 0.2, 0.2, 0.1)

    monkeypatch.setattr(spamlang_grid, "spamlang", run)
    return seen


def test_a_file_gives_defaults_and_its_mistakes_are_named(tmp_path, untrained):
    file = tmp_path / "grid.yaml"
    file.write_text("heads: softmax,moc\nseeds: 1\nsteps: 30\n")
    done = command("--conf", file)  # which has --steps 20 of its own
    assert done.exit_code == 0, done.output
    assert [one.steps for one in untrained] == [20] * 4
    file.write_text("heads: softmax\nstepps: 3\nlr: fast\n")
    done = command("--conf", file)
    assert done.exit_code == 2
    assert f"{file}:2: stepps: No such option: --stepps" in done.output
    file.write_text("lr: fast\n")
    assert f"{file}:1: lr: Invalid value for '--lr'" in command("--conf", file).output
    file.write_text(f"conf: {file}\n")
    done = command("--conf", file)
    assert done.exit_code == 2 and f"{file}:1: conf: write `base: FILE`" in done.output


def test_an_interrupted_grid_keeps_its_finished_runs(tmp_path, untrained, monkeypatch):
    words = ["--heads", "softmax", "--seeds", "1,2", "--output", tmp_path / "runs.json"]
    run = spamlang_grid.spamlang

    def interrupted(options, settings):
        if len(untrained) == 3:
            raise SystemExit(143)
        return run(options, settings)

    monkeypatch.setattr(spamlang_grid, "spamlang", interrupted)
    assert command(*words).exit_code == 143
    monkeypatch.setattr(spamlang_grid, "spamlang", run)
    assert command(*words).exit_code == 0 and len(untrained) == 4


def test_a_second_process_that_adds_to_a_file_is_refused(tmp_path, untrained):
    file = tmp_path / "new" / "runs.json"
    words = ["--heads", "softmax", "--seeds", "1", "--output", file]
    with held_elsewhere(file.with_name(".runs.json.lock")):
        done = command(*words)
        assert done.exit_code == 2 and f"--output {file} is in use by another" in done.output
        assert not untrained and not file.exists()
    assert command(*words).exit_code == 0 and file.exists()
    with held_elsewhere(file.with_name(".runs.json.lock")):
        assert command(*words, "--table-only").exit_code == 0  # it only reads


def test_only_runs_that_have_not_learnt_are_repeated_with_more_steps(tmp_path, untrained):
    """Runs with other settings are not mixed, and the table alone trains nothing."""
    words = ["--heads", "mos", "--seeds", "1", "--output", tmp_path / "runs.json"]
    done = command(*words[:2], "--output", words[-1], "--table-only")
    assert done.exit_code == 2 and "--table-only needs --output FILE" in done.output
    for steps, count in (("20", 2), ("30", 4), ("40", 4), ("10", 4)):
        done = command(*words, "--steps", steps)
        assert done.exit_code == 0 and len(untrained) == count, (steps, done.output)
    assert len(json.loads((tmp_path / "runs.json").read_text())["runs"]) == 2
    done = command(*words, "--seeds", "1,2", "--table-only")
    assert done.exit_code == 0 and "| 20 | 8 | mos |" in done.stdout
    for option, value, said in (
        ("--lr", "0.1", "lr 0.01, not 0.1"),
        ("--components", "2", "components None, not 2"),
    ):
        done = command(*words, option, value)
        assert done.exit_code == 2 and said in done.output
    assert len(untrained) == 4


@pytest.mark.parametrize("text", ["{", "[]", '{"runs": 3}', '{"runs": [{"layer": "mos"}]}'])
def test_a_damaged_file_is_named_and_kept(tmp_path, untrained, text):
    file = tmp_path / "runs.json"
    file.write_text(text)
    done = command("--output", file)
    assert done.exit_code == 2 and str(file) in done.output and done.output.count("\n") == 1
    assert file.read_text() == text and not untrained


@pytest.mark.parametrize(
    ("name", "rank", "message"),
    [("softmax", 9, "must lie in"), ("softmax", 0, "must lie in"), ("mos", 2, "contexts first")],
)
def test_impossible_controls_are_refused(name, rank, message):
    with pytest.raises(ValueError, match=message):
        spamlang({"name": name}, SpamLangSettings(classes=20, dim=8, backward_rank=rank))


def test_the_figure_shows_runs_that_have_learnt_over_the_vocabulary():
    runs = [*runs_of("softmax", [100, 110]), *runs_of("mos", [None, 140]), *runs_of("moc", [None])]
    runs += [run | {"classes": 1000} for run in runs_of("softmax", [300])]
    (figure,) = grid_figures(runs)
    assert figure.groups == {
        "softmax, M = 20": [(20, 100), (20, 110)],
        "softmax, M = 1,000": [(1000, 300)],
        "mos, M = 20": [(20, 140)],
    }
    assert figure.connected == [["softmax, M = 20", "softmax, M = 1,000"]]
    assert figure.title == "SpamLang, d = 4"
