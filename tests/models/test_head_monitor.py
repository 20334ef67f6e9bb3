"""--head-monitor shows the numbers of highrank_plugins.analysis; a training does not notice it."""

import math
import re

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from highrank_plugins.analysis.components import component_use, gate_sharpness, slope_statistics
from highrank_plugins.analysis.retention import gradient_retention, logit_gradient
from highrank_plugins.analysis.spectrum import spectral_entropy
from highrank_plugins.heads import build_head
from highrank_plugins.measures import retention
from highrank_plugins.models.head_monitor import CollapseWatch, HeadMonitor, take_snapshot
from tests.analysis.test_spectrum import OneSoftmax
from tests.heads.cases import CLASSES, MIXTAPE, MOC, MOS, SOFTMAX, make_features
from tests.trainings import last, parameters, same, train

EVERY_THIRD = ["--head-monitor", 3, "--log-interval", 1, "--disable-validation"]
COMPONENTS = {"head_component_entropy", "head_component_entropy_overall", "head_component_least"}
ALL = {"head_spectral_entropy", "head_effective_rank", "head_gradient_retention"}
GATES = {
    f"head_gate_{what}_{who}" for what in ("entropy", "largest") for who in ("frequent", "rare")
}
SLOPES = {f"head_slope_{name}" for name in ("mean", "sd", "smallest", "largest")}
SHOWN = {
    "transformer_mos_tiny": ALL | COMPONENTS,
    "transformer_mixtape_tiny": ALL | COMPONENTS | GATES,
    "transformer_lm_plif": ALL | SLOPES,
    "awd_lstm_lm_moc": ALL | COMPONENTS,
    "lstm_mos": ALL | COMPONENTS,
}
OPTIONS = {"transformer_lm_plif": ["--head-plif-knots", 500]}


def events(folder) -> EventAccumulator:
    found = EventAccumulator(str(folder), size_guidance={"scalars": 0, "histograms": 0})
    return found.Reload()


@pytest.mark.parametrize("arch", SHOWN)
def test_every_model_logs_the_measures_of_its_head(arch, mt_data, lm_data, tmp_path):
    data = lm_data if "_lm_" in arch else mt_data
    common = [*OPTIONS.get(arch, []), "--update-freq", 2, "--disable-validation"]
    train(data, tmp_path / "alone", arch, 7, *common)
    shown = [*common, *EVERY_THIRD, "--tensorboard-logdir", logdir := tmp_path / "events"]
    stops = (4, 7) if arch == "transformer_mos_tiny" else (7,)  # a resumed run goes on
    done = [train(data, tmp_path / "seen", arch, updates, *shown) for updates in stops]
    output = "".join(each.output for each in done)
    assert same(parameters(last(tmp_path / "seen")), parameters(last(tmp_path / "alone")))
    found = events(logdir / "head")
    scalars = {tag for tag in found.Tags()["scalars"] if "/" not in tag}
    assert scalars == SHOWN[arch]
    for tag in found.Tags()["scalars"]:
        assert [event.step for event in found.Scalars(tag)] == [3, 6]
    shares = [tag for tag in found.Tags()["scalars"] if tag.startswith("head_component_use/")]
    assert bool(shares) == (SHOWN[arch] >= COMPONENTS)
    if shares:
        values = (found.Scalars(tag)[0].value for tag in shares)
        assert sum(values) == pytest.approx(1, abs=1e-6)
    histograms = {"head_singular_values"} | ({"head_slopes"} if "plif" in arch else set())
    assert set(found.Tags()["histograms"]) == histograms
    lines = [line for line in output.splitlines() if " | INFO | train_inner | " in line]
    assert len(lines) == 7 and [line.count("head_") for line in lines[:2]] == [0, 0]
    newest = found.Scalars("head_effective_rank")[-1].value
    shown = re.search(r"head_effective_rank=([\d.]+)", lines[-1])
    assert float(shown[1]) == pytest.approx(newest, abs=0.01)


def monitored(head, features, updates):
    """Yield updates of a training run whose every batch is the same."""
    monitor = HeadMonitor(head, 1)
    target = torch.zeros(features.shape[:-1], dtype=torch.long)
    for update in range(updates):
        monitor.before_update(update)
        monitor.see(features, target, None)
        monitor.after_update(update + 1, None)
    return monitor


def test_a_collapse_and_numbers_that_are_not_finite_give_a_warning(caplog):
    head = build_head("mos", num_classes=11, feature_dim=4, components=3)
    with torch.no_grad():
        head.prior.weight.copy_(torch.tensor([[9.0], [9.0], [0.0]]).expand(3, 4))
    monitored(head, torch.ones(2, 5, 4), 12)
    assert monitored(head, torch.full((2, 5, 4), float("inf")), 1).latest == {}
    collapsed, infinite = [record.getMessage() for record in caplog.records]
    assert "at update 10 components 2 of 3 (from 0) have collapsed" in collapsed
    assert "1% of an equal share. Use fewer (--head-components)" in collapsed
    assert infinite == "--head-monitor: could not measure this update: a feature is not finite"


def test_the_first_batch_of_an_update_that_succeeds_is_measured():
    head, features = build_head("softmax", num_classes=11, feature_dim=4), torch.randn(2, 5, 4)
    monitor, target = HeadMonitor(head, 3), torch.zeros(2, 5, dtype=torch.long)
    monitor.before_update(2)
    monitor.see(features, target, None)
    monitor.after_update(2, None)  # fp16: the gradients overflowed
    assert monitor.latest == {}
    monitor.before_update(2)
    for batch in (2 * features, features):
        monitor.see(batch, target, None)
    monitor.after_update(3, None)
    assert monitor.latest == monitored(head, 2 * features, 1).latest


def test_a_component_is_reported_once_it_has_collapsed():
    healthy = torch.tensor([0.5, 0.3, 0.2])
    dying = torch.tensor([0.6, 0.399, 0.001])  # the last one has .3 % of an equal share
    for window, uses, reported in (
        (3, [dying] * 5, [[], [], [2], [], []]),  # once, when the window is full
        (2, [healthy, dying, dying, dying], [[], [], [2], []]),  # the mean of the window counts
        (1, [torch.tensor([1 - x, x]) for x in (0.00501, 0.00499)], [[], [1]]),  # 1 % of 1/K
        (1, [dying, healthy, dying], [[2], [], [2]]),  # again after recovery
        (1, [dying, torch.tensor([0.999, 0.0005, 0.0005])], [[2], [1]]),  # each by itself
    ):
        watch = CollapseWatch(window)
        assert [watch.see(use) for use in uses] == reported


# -- the numbers ---------------------------------------------------------------------------------

TARGET = torch.tensor([[0, 3, 6, 2, 1], [5, 4, 6, 0, 2]])
HEADS = [SOFTMAX, MOC, MOS, MIXTAPE]
CASES = [
    SOFTMAX, SOFTMAX.with_pointwise("gss"), MOC, MOC.with_pointwise("plif"), MOS,
    MOS.with_pointwise("plif", knots=50), MIXTAPE, MIXTAPE.with_pointwise("gss"),
    MIXTAPE.with_options(frequent=0), MIXTAPE.with_options(frequent=CLASSES),
]  # fmt: skip
BATCH = make_features(2, 5), TARGET


def scalars(found):
    return {name: value for name, value in found.items() if isinstance(value, float)}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_numbers_are_those_of_the_analysis(case):
    head, close = case.build(), torch.testing.assert_close
    found = take_snapshot(head, *BATCH)
    values = torch.linalg.svdvals(head.weight.detach())
    entropy = spectral_entropy(values)
    assert found["spectral_entropy"] == pytest.approx(entropy, rel=1e-9)
    assert found["effective_rank"] == pytest.approx(math.exp(entropy), rel=1e-9)
    close(found["singular_values"], values)
    gradient = logit_gradient(head, *BATCH)
    kept = float(gradient_retention(head.weight, gradient.flatten(0, 1)))
    assert 0 < kept < 1 and found["gradient_retention"] == pytest.approx(kept, rel=1e-9)
    if case.head in ("moc", "mos"):
        flat = head.flatten_features(BATCH[0])
        expected = component_use(head.log_weights(flat, None, head.tensors()))
        close(found["component_use"], expected.mean_prior)
        assert found["component_entropy"] == pytest.approx(expected.entropy)
        assert found["component_entropy_overall"] == pytest.approx(expected.overall_entropy)
        assert found["component_least"] == pytest.approx(3 * float(expected.mean_prior.min()))
    if case.head == "mixtape" and case.pointwise == "identity":
        # z_x = Σ_k π_{x,k} z_{x,k}: the components' gradients are in the ratio of their gates
        own = gradient.gather(-1, TARGET.view(-1, 1, 1).expand(-1, 4, 1)).squeeze(-1)
        close(found["component_use"], (own / own.sum(-1, keepdim=True)).mean(0))
    if case.options.get("frequent") == 3:
        frequent, rare = gate_sharpness(head, BATCH[0])
        assert found["gate_entropy_frequent"] == pytest.approx(frequent.entropy)
        assert found["gate_largest_rare"] == pytest.approx(rare.largest)
    if case.pointwise == "plif":
        slopes = slope_statistics(head.pointwise)._asdict()
        assert slopes == {name: found[f"slope_{name}"] for name in slopes}


@pytest.mark.parametrize("factor", [0, 1])
def test_gradient_retention_is_right_without_full_rank(factor):
    head = SOFTMAX.build()
    with torch.no_grad():
        head.weight[:, 3] = factor * (head.weight[:, 0] - head.weight[:, 1])
    expected = float(gradient_retention(head.weight, logit_gradient(head, *BATCH).flatten(0, 1)))
    assert take_snapshot(head, *BATCH)["gradient_retention"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("head", "batch"),
    [
        *((MIXTAPE.with_options(components=k).build, ()) for k in (1, 4)),
        (MIXTAPE.build, (make_features(0), TARGET[:0, 0])),
        *((case.with_options(components=1).build, BATCH) for case in (MOS, MIXTAPE)),
        (lambda: OneSoftmax(CLASSES, 4).double(), BATCH),
    ],
)
def test_without_a_batch_or_a_mixture_less_is_measured(head, batch):
    found = take_snapshot(head(), *batch)
    names = {"spectral_entropy", "effective_rank"}
    assert scalars(found).keys() == names | ({"gradient_retention"} if batch is BATCH else set())
    assert "component_use" not in found


NOISY = {"moc": {"dropout": 0.5}, "mos": {"dropout": 0.5},
         "mixtape": {"dropout": 0.5, "gate_dropout": 0.5, "gate_noise": 1.0}}  # fmt: skip


@pytest.mark.parametrize("case", HEADS, ids=str)
def test_ignored_tokens_chunks_and_training_change_no_value_and_measuring_no_state(
    case, monkeypatch
):
    head = case.with_options(**NOISY.get(case.head, {})).build()
    features, kept = make_features(2, 5).requires_grad_(), TARGET != 6
    expected = take_snapshot(head, features, TARGET)
    before = {name: value.clone() for name, value in head.state_dict().items()}
    state = torch.get_rng_state()
    assert scalars(take_snapshot(head.train(), features, TARGET)) == scalars(expected)
    padded = take_snapshot(head, features, TARGET.where(kept, 99), ignore_index=99)
    assert scalars(padded) == scalars(take_snapshot(head, features[kept], TARGET[kept]))
    assert torch.equal(torch.get_rng_state(), state)
    assert features.grad is None and all(p.grad is None for p in head.parameters())
    assert all(torch.equal(value, before[name]) for name, value in head.state_dict().items())
    monkeypatch.setattr(retention, "MONITORED_NUMBERS", 3 * 4 * CLASSES)
    found = take_snapshot(head, features, TARGET)
    assert scalars(found) == pytest.approx(scalars(expected), rel=1e-12)
    for name in found.keys() & {"component_use"}:
        torch.testing.assert_close(found[name], expected[name])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", HEADS, ids=str)
def test_half_precision_and_autocast_are_measured_in_float32(case, dtype):
    rounded = case.build(dtype=dtype)  # the same numbers in both
    features = make_features(2, 5).to(dtype)
    expected = take_snapshot(rounded.double(), features.double(), TARGET)
    found = take_snapshot(rounded.to(dtype), features, TARGET)
    for name, value in scalars(expected).items():
        assert found[name] == pytest.approx(value, rel=100 * torch.finfo(dtype).eps)
    wide = scalars(take_snapshot(rounded.float(), *BATCH))
    with torch.autocast("cpu", torch.bfloat16):
        assert scalars(take_snapshot(rounded, *BATCH)) == wide


@pytest.mark.parametrize("broken", ["weight", "latent.bias", "feature"])
def test_values_that_are_not_finite_are_refused(broken):
    head, features = MOS.build(), make_features(2, 5)
    with torch.no_grad():
        place = features if broken == "feature" else head.get_parameter(broken)
        place.view(-1)[1] = math.inf
    with pytest.raises(ValueError, match=f"{broken}.* not finite"):
        take_snapshot(head, features, TARGET)
