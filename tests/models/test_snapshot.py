"""A snapshot equals the functions of highrank_plugins.analysis, and changes nothing."""

import math

import pytest
import torch

from highrank_plugins.analysis.components import component_use, gate_sharpness, slope_statistics
from highrank_plugins.analysis.retention import gradient_retention, logit_gradient
from highrank_plugins.analysis.spectrum import spectral_entropy
from highrank_plugins.measures import retention
from highrank_plugins.measures.base import MonitoredBatch
from highrank_plugins.models.head_monitor import take_snapshot
from tests.analysis.test_spectrum import OneSoftmax
from tests.heads.cases import CLASSES, MIXTAPE, MOC, MOS, SOFTMAX, Case, make_features

TARGET = torch.tensor([[0, 3, 6, 2, 1], [5, 4, 6, 0, 2]])
HEADS = [SOFTMAX, MOC, MOS, MIXTAPE]


def snapshot_of(case: Case, **options):
    return take_snapshot(case.build(**options), make_features(2, 5), TARGET)


def scalars(found):
    return {name: value for name, value in found.items() if isinstance(value, float)}


@pytest.mark.parametrize("case", HEADS, ids=str)
def test_the_vocabulary_matrix_is_measured(case):
    values = torch.linalg.svdvals(case.build().weight.detach())
    found = snapshot_of(case)
    assert found["spectral_entropy"] == pytest.approx(spectral_entropy(values), rel=1e-9)
    rank = math.exp(spectral_entropy(values))
    assert found["effective_rank"] == pytest.approx(rank, rel=1e-9)
    torch.testing.assert_close(found["singular_values"], values)


def retention_of(head):
    """Return the measured retention, and that of the gradient in the logits."""
    rows = logit_gradient(head, make_features(2, 5), TARGET).flatten(0, 1)
    found = take_snapshot(head, make_features(2, 5), TARGET)["gradient_retention"]
    return found, float(gradient_retention(head.weight, rows))


@pytest.mark.parametrize("pointwise", ["identity", "gss", "plif"])
@pytest.mark.parametrize("case", HEADS, ids=str)
def test_gradient_retention_is_measured(case, pointwise):
    found, expected = retention_of(case.with_pointwise(pointwise).build())
    assert 0 < found < 1
    assert found == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("factor", [0, 1])
def test_gradient_retention_is_right_without_full_rank(factor):
    head = SOFTMAX.build()
    with torch.no_grad():
        head.weight[:, 3] = factor * (head.weight[:, 0] - head.weight[:, 1])
    found, expected = retention_of(head)
    assert found == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("case", [MOC, MOS], ids=str)
def test_the_prior_is_measured(case):
    head, found = case.build(), snapshot_of(case)
    flat = head.flatten_features(make_features(2, 5))
    expected = component_use(head.log_weights(flat, None, head.tensors()))
    torch.testing.assert_close(found["component_use"], expected.mean_prior)
    assert found["component_entropy"] == pytest.approx(expected.entropy)
    assert found["component_entropy_overall"] == pytest.approx(expected.overall_entropy)
    least = 3 * float(expected.mean_prior.min())
    assert found["component_least"] == pytest.approx(least)


@pytest.mark.parametrize("frequent", [0, 3, CLASSES])
def test_gates_are_averaged_over_the_target_words(frequent):
    head = MIXTAPE.with_options(frequent=frequent).build()
    found = take_snapshot(head, make_features(2, 5), TARGET)
    # z_x = Σ_k π_{x,k} z_{x,k}: the components' gradients are in the ratio of their gates
    gradient = logit_gradient(head, make_features(2, 5), TARGET)
    index = TARGET.view(-1, 1, 1).expand(-1, 4, 1)
    own = gradient.gather(-1, index).squeeze(-1)
    expected = (own / own.sum(-1, keepdim=True)).mean(0)
    torch.testing.assert_close(found["component_use"], expected)


def test_the_sharpness_of_gates_is_measured():
    head = MIXTAPE.build()
    frequent, rare = gate_sharpness(head, make_features(2, 5))
    found = take_snapshot(head, make_features(2, 5), TARGET)
    assert found["gate_entropy_frequent"] == pytest.approx(frequent.entropy)
    assert found["gate_largest_rare"] == pytest.approx(rare.largest)


def test_slopes_are_measured():
    head = MOS.with_pointwise("plif", knots=50).build()
    found = take_snapshot(head)
    expected = slope_statistics(head.pointwise)
    for name, value in expected._asdict().items():
        assert found[f"slope_{name}"] == value
    assert found["slopes"].shape == (50,)


BATCH = make_features(2, 5), TARGET


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


@pytest.mark.parametrize("case", HEADS, ids=str)
def test_ignored_tokens_do_not_count(case):
    head, features = case.build(), make_features(2, 5)
    padded = torch.where(TARGET == 6, 99, TARGET)
    kept = TARGET != 6
    expected = take_snapshot(head, features[kept], TARGET[kept])
    assert scalars(take_snapshot(head, features, padded, ignore_index=99)) == scalars(expected)


@pytest.mark.parametrize("case", [MOS, MIXTAPE], ids=str)
def test_the_size_of_chunks_changes_nothing(case, monkeypatch):
    expected = snapshot_of(case)
    monkeypatch.setattr(retention, "MONITORED_NUMBERS", 3 * 4 * CLASSES)
    found = snapshot_of(case)
    assert scalars(found) == pytest.approx(scalars(expected), rel=1e-12)
    torch.testing.assert_close(found["component_use"], expected["component_use"])


def test_a_long_batch_is_sampled_evenly():
    features, target = torch.arange(200.0).unsqueeze(1), torch.arange(200)
    some, words = MonitoredBatch(SOFTMAX.build(), features, target).some(64)
    assert words.tolist() == [200 * i // 64 for i in range(64)]
    assert torch.equal(some.squeeze(1).long(), words)


NOISY = {"dropout": 0.5, "gate_dropout": 0.5, "gate_noise": 1.0}


@pytest.mark.parametrize("case", HEADS, ids=str)
def test_training_mode_changes_no_value_and_measuring_changes_no_state(case):
    if case.head != "softmax":
        options = NOISY if case.head == "mixtape" else {"dropout": 0.5}
        case = case.with_options(**options)
    head, features = case.build(), make_features(2, 5).requires_grad_()
    expected = take_snapshot(head, features, TARGET)
    before = {name: value.clone() for name, value in head.state_dict().items()}
    state = torch.get_rng_state()
    found = take_snapshot(head.train(), features, TARGET)
    assert scalars(found) == scalars(expected)
    assert torch.equal(torch.get_rng_state(), state)
    assert features.grad is None and all(p.grad is None for p in head.parameters())
    assert all(torch.equal(value, before[name]) for name, value in head.state_dict().items())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", HEADS, ids=str)
def test_half_precision_is_measured_in_float32(case, dtype):
    rounded = case.build(dtype=dtype)  # the same numbers in both
    features = make_features(2, 5).to(dtype)
    expected = take_snapshot(rounded.double(), features.double(), TARGET)
    found = take_snapshot(rounded.to(dtype), features, TARGET)
    for name, value in scalars(expected).items():
        assert found[name] == pytest.approx(value, rel=100 * torch.finfo(dtype).eps)


def test_autocast_does_not_lower_the_precision():
    head, features = MOS.build(dtype=torch.float32), make_features(2, 5)
    expected = take_snapshot(head, features, TARGET)
    with torch.autocast("cpu", torch.bfloat16):
        assert scalars(take_snapshot(head, features, TARGET)) == scalars(expected)


@pytest.mark.parametrize("broken", ["weight", "latent.bias", "feature"])
def test_values_that_are_not_finite_are_refused(broken):
    head, features = MOS.build(), make_features(2, 5)
    with torch.no_grad():
        place = features if broken == "feature" else head.get_parameter(broken)
        place.view(-1)[1] = math.inf
    with pytest.raises(ValueError, match=f"{broken}.* not finite"):
        take_snapshot(head, features, TARGET)
