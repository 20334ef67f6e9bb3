"""A race trains layers alone, from the trunk's own matrix, resumes, and refuses other features."""

import json
import math
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from highrank_plugins.common.files import files_digest
from highrank_plugins.heads import Softmax, build_head
from highrank_plugins.inference.collector import Collector
from highrank_plugins.studies import race as racing
from highrank_plugins.studies.definition import RaceSettings
from highrank_plugins.studies.race import RaceRun, first_layer, race, train
from highrank_plugins.studies.trunk import loss_of, read_texts, read_trunk
from tests.inference.checkpoints import write_checkpoint
from tests.tasks.built import build

LAYERS, RATES = ["softmax", "mos"], [1.0, 10.0]
SMALL = {"seeds": 2, "lr": 1e-2, "epochs": 2, "batch": 50, "tokens": 300, "jobs": 1}


@pytest.fixture(scope="module")
def trunk(stream_data, tmp_path_factory):
    path = tmp_path_factory.mktemp("trunk") / "a.pt"
    return write_checkpoint(path, build(stream_data)), str(stream_data)


@pytest.fixture(scope="module")
def finished(trunk, tmp_path_factory):
    settings = RaceSettings(exp_dir=tmp_path_factory.mktemp("race") / "r", **SMALL)
    return settings, race(*trunk, settings, LAYERS, RATES)


@pytest.fixture
def copied(finished, tmp_path):
    shutil.copytree(finished[0].exp_dir, tmp_path / "r")
    return finished[0].model_copy(update={"exp_dir": tmp_path / "r"})


def records(settings: RaceSettings) -> dict[str, dict]:
    folder = settings.exp_dir / "runs"
    return {str(p.relative_to(folder)): json.loads(p.read_text()) for p in folder.rglob("*.json")}


def metrics(settings: RaceSettings) -> dict[str, dict]:
    return {name: record["metrics"] for name, record in records(settings).items()}


def begun(settings: RaceSettings, layer: str, rate: float = 1.0):
    """Return the texts of a race, its trunk, a run, and the layer with which that begins."""
    texts, saved = read_texts(settings), read_trunk(settings)
    torch.manual_seed(1)
    run = RaceRun(settings, layer, rate, 1, "", None)
    return texts, saved, run, first_layer(run, saved, texts)


def test_every_layer_has_its_best_rate_and_every_seed(finished):
    settings, tables = finished
    found = records(settings)
    assert len(found) == 6  # 2 layers × 2 rates, and the second seed of each
    for layer in LAYERS:
        losses = {r: found[f"{r:g}/{layer}-1.json"]["train"]["trained_valid_loss"] for r in RATES}
        best = min(losses, key=losses.get)
        assert f"{best:g}/{layer}-2.json" in found
        assert f"{layer} {best:g}" in " ".join(tables[0].notes)
    assert sorted(row[0].text.split()[0] for row in tables[0].rows) == sorted(LAYERS)
    notes = " ".join(tables[0].notes)
    assert "No difference here proves nothing: the trunk was trained with softmax" in notes
    assert "What can be claimed" in tables[-1].notes[-1]
    assert (settings.exp_dir / "table.md").read_text().startswith("| system")


def test_a_record_has_the_perplexities_of_its_positions(finished, trunk):
    settings, _ = finished
    record = records(settings)["1/softmax-1.json"]
    collector = Collector.open(*trunk, "test", tokens=SMALL["tokens"])
    blocks = list(collector.blocks())
    own = -torch.cat([b.log_probs.gather(1, b.target[:, None]) for b in blocks]).mean()
    assert record["metrics"]["trunk_test_perplexity"] == pytest.approx(own.exp().item(), rel=1e-4)
    texts, _, run, start = begun(settings, "softmax")
    assert torch.equal(texts["test"][1], torch.cat([b.target for b in blocks]))
    counts = np.bincount(texts["train"][1].numpy(), minlength=collector.head.num_classes) + 1
    nats = -np.log(counts / counts.sum())[texts["test"][1].numpy()].mean()
    floor = record["metrics"]["test_unigram_perplexity"]
    assert floor == pytest.approx(math.exp(nats), rel=1e-4)
    assert record["train"]["updates"] == 2 * 6
    assert record["train"]["parameters"] == collector.head.weight.numel() + len(counts)
    # scored again, by another way: the layer that this seed and rate give
    head, losses = train(start, texts, run)
    picked = head.eval()(texts["test"][0]).gather(1, texts["test"][1][:, None]).mean().item()
    assert record["metrics"]["test_perplexity"] == pytest.approx(math.exp(-picked), rel=1e-4)
    assert record["train"]["best_valid_loss"] == min(losses)


def test_layers_start_with_the_trunks_own_function_unless_its_matrix_is_narrower(finished):
    for layer in ("mos", "moc", "mixtape", "softmax"):
        texts, saved, run, head = begun(finished[0], layer)
        assert torch.equal(head.weight, saved["weight"])
        off = 0.05 if layer != "softmax" else 1e-6
        assert abs(loss_of(head, *texts["test"]) - saved["loss"]) < off
    torch.manual_seed(1)
    head = first_layer(run, saved | {"weight": saved["weight"][:, :4]}, texts)
    torch.manual_seed(1)
    plain = build_head(run.layer, num_classes=head.num_classes, feature_dim=head.feature_dim)
    assert torch.equal(head.weight, plain.weight)


def test_the_best_validation_is_kept_not_the_last(finished):
    wild = finished[0].model_copy(update={"lr": 3.0})
    texts, _, run, start = begun(wild, "softmax", 3.0)
    head, losses = train(start, texts, run)
    assert losses[-1] > min(losses)
    assert loss_of(head, *texts["valid"]) == min(losses)


def test_a_killed_race_resumes_with_the_same_numbers_in_two_processes(copied, trunk):
    before = metrics(copied)
    runs = sorted((copied.exp_dir / "runs").rglob("*.json"))
    written = [file.stat().st_mtime_ns for file in runs]
    for file in runs[2:]:
        file.unlink()
    race(*trunk, copied.model_copy(update={"jobs": 2}), LAYERS, RATES)
    assert metrics(copied) == before
    again = [file.stat().st_mtime_ns == at for file, at in zip(runs, written, strict=True)]
    assert again == [True] * 2 + [False] * 4


def test_a_layer_that_diverged_is_not_tested(copied, trunk):
    (broken,) = (copied.exp_dir / "runs").glob("*/mos-2.json")
    diverged(broken)
    notes = " ".join(race(*trunk, copied, LAYERS, RATES)[0].notes)
    assert "Not tested, since a seed diverged" in notes and "Diverged: mos-2." in notes
    diverged(first := copied.exp_dir / "runs" / "1" / "mos-1.json")
    first.with_name("mos-2.json").write_text(first.read_text().replace('"seed": 1', '"seed": 2'))
    (whole,) = race(*trunk, copied, LAYERS, RATES[:1])[:1]
    assert len(whole.rows) == 1 and "Diverged: mos-1, mos-2." in whole.notes, "it does not vanish"
    for file in (copied.exp_dir / "runs").glob("*/softmax-*.json"):
        diverged(file)
    with pytest.raises(ValueError, match="softmax, the baseline, diverges; lower --lr or --rates"):
        race(*trunk, copied, LAYERS, RATES)


def diverged(file: Path) -> None:
    found = json.loads(file.read_text())
    lost = dict.fromkeys(("valid_loss", "best_valid_loss", "trained_valid_loss"))
    kept = {name: found[name] for name in ("config", "trunk")}
    file.write_text(json.dumps({"train": found["train"] | lost, **kept}))


class Cheat(Softmax):
    """A layer whose loss of many words is a thousandth of a nat less than −log P for each."""

    def nll(self, features, *given, **options):
        found = super().nll(features, *given, **options)
        return found._replace(loss=found.loss - (len(features) > 64) / 1000)


class Leak(Softmax):
    """A layer whose log P depends on the next token's features in batches of 64 tokens."""

    def __call__(self, features):
        beside = features.roll(-1, 0) if len(features) == 64 else torch.zeros(())
        return super().__call__(features + 0.3 * beside)


def test_a_loss_that_is_not_that_of_the_probabilities_is_refused(finished):
    settings, _ = finished
    features, target = read_texts(settings)["test"]
    sizes = {"num_classes": int(target.max()) + 1, "feature_dim": features.size(1)}
    plain = Softmax(**sizes)
    loss, mass = racing.certified_loss(plain, features, target)
    assert loss == pytest.approx(loss_of(plain, features, target), rel=1e-6)
    assert len(features) > 64
    assert abs(mass.worst) < 1e-5 and mass.seen == 64
    for head, sums in ((Cheat(**sizes), r"1\.001"), (Leak(**sizes), "")):
        with pytest.raises(ValueError, match=f"as it was scored, sums to {sums}"):
            racing.certified_loss(head, features, target)
    found = records(settings)["1/softmax-1.json"]["certificates"]["test_perplexity"]
    assert re.search(r"^ppl\|unit:token\|ctx:frozen\|text:test-.*\|mass:1[+-]\de-", found)


def test_a_changed_layer_of_the_user_is_another_race(finished, tmp_path):
    (tmp_path / "__init__.py").write_text("")
    run = RaceRun(finished[0], "own", 1.0, 1, "", tmp_path)
    before = run.options
    (tmp_path / "__init__.py").write_text("SCALE = 2")
    files_digest.cache_clear()
    assert run.options != before


def test_a_rate_that_only_harms_is_not_chosen(copied, trunk):
    """Compare rates without the start, which is better than all that a rate of 3e5 gives."""
    for file in (copied.exp_dir / "runs").glob("*/mos-*.json"):
        file.unlink()
    wild = [1.0, 3e5]
    notes = " ".join(race(*trunk, copied, LAYERS, wild)[0].notes)
    assert records(copied)["300000/softmax-1.json"]["train"]["trained_valid_loss"] > 9
    assert float(re.search(r"softmax 1 \(([\d.]+)", notes)[1]) > 2


def test_another_trunk_changed_features_and_another_dictionary_are_refused(
    copied, trunk, stream_data, tmp_path
):
    def refused(checkpoint=trunk[0], data=trunk[1], settings=copied) -> str:
        with pytest.raises(ValueError) as error:
            race(checkpoint, data, settings, LAYERS, [*RATES, 3.0])
        assert not (settings.exp_dir / "runs" / "3").exists(), "before any training"
        assert "\n" not in str(error.value)
        return str(error.value)

    other = write_checkpoint(tmp_path / "b.pt", build(stream_data, "--dropout", "0.3"))
    assert "features is of another race: checkpoint was" in refused(other)
    shutil.move(copied.exp_dir / "features", tmp_path / "features")
    assert "softmax-1.json is of another race: checkpoint was" in refused(other)
    shutil.rmtree(copied.exp_dir / "features")
    shutil.move(tmp_path / "features", copied.exp_dir / "features")
    trunk_file = copied.exp_dir / "features" / "trunk.pt"
    whole = trunk_file.read_bytes()
    trunk_file.unlink()  # of a race that was killed before all features were there
    assert "features is of another race: checkpoint was" in refused(other)
    trunk_file.write_bytes(whole[:100])
    assert "trunk.pt: damaged" in refused()
    trunk_file.write_bytes(whole)
    tokens = copied.model_copy(update={"tokens": 200})
    assert "features is of another race: tokens was 300, and is 200 now" in refused(settings=tokens)
    for wrong in ("[]", "{}", '{"train": {"best_valid_loss": "abc"}}'):
        saved = (path := copied.exp_dir / "runs" / "1" / "softmax-1.json").read_text()
        path.write_text(wrong)
        assert f"{path}: not a record of a race; delete it" in refused()
        path.write_text(saved)
    path = copied.exp_dir / "runs" / "10" / "mos-2.json"
    path.write_text(path.read_text().replace('"batch": 50', '"batch": 60'))
    assert "10/mos-2.json is of another race: batch was 60, and is 50 now" in refused()
    words = Path(shutil.copytree(stream_data, tmp_path / "data")) / "dict.txt"
    first, second, *rest = words.read_text().splitlines()
    words.write_text("\n".join([second, first, *rest]) + "\n")
    assert "dictionary" in refused(data=str(words.parent))
    with (copied.exp_dir / "features" / "valid" / "features.npy").open("r+b") as file:
        file.seek(-4, 2)
        file.write(b"\1\2\3\4")
    said = refused()
    assert "features/valid/features.npy was" in said and "name another --exp-dir" in said


@pytest.mark.parametrize(
    ("layers", "rates", "said"),
    [
        (["softmax", "sigsoftmx"], [1.0], "did you mean"),
        (["mos", "moc"], [1.0], "name softmax, the baseline"),
        (["softmax"], [1.0], "another layer at least"),
        (LAYERS, [1.0, -1.0], "expected different numbers above 0"),
        (LAYERS, [1.0], "missing.pt"),
    ],
)
def test_bad_options_are_refused_before_anything_is_written(layers, rates, said, tmp_path):
    settings = RaceSettings(exp_dir=tmp_path / "r", **SMALL)
    with pytest.raises((ValueError, OSError), match=said):
        race(Path("missing.pt"), "data", settings, layers, rates)
    assert not list(tmp_path.iterdir())
