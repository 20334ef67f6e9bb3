"""`highrank bench train`: a chunk of streams, batches by memory, the monitor; presets of papers."""

from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from highrank_plugins.benchmarks import implementations, measuring, run
from highrank_plugins.benchmarks.case import CaseError, LossCase, ModelCase, presets
from highrank_plugins.benchmarks.implementations import available, loss_function, loss_step
from highrank_plugins.benchmarks.measuring import MeasurementFailed, OutOfMemory, Timing
from highrank_plugins.benchmarks.models import model_step, parameters
from highrank_plugins.models.awd_lstm_lm import AWDLSTMLanguageModel
from highrank_plugins.training import configuration
from tests.heads.toys import toys  # noqa: F401  (pytest finds the fixture by its name)
from tests.recipes.running import RECIPES

WIDTHS = "--decoder-embed-dim 8 --decoder-hidden-size 12 --decoder-last-hidden-size 10"
SOFTMAX = "awd_lstm_lm_softmax_ptb --decoder-embed-dim 8 --decoder-hidden-size 12"
LOSS = LossCase("mos", tokens=64, dim=16, classes=500)
CASE = ModelCase(60, sentences=2, length=5, task="bptt_language_modeling", baseline=SOFTMAX)


def test_a_step_trains_and_carries_the_state(monkeypatch):
    models, states, forward = [], [], AWDLSTMLanguageModel.forward

    def remember(self, *args, **kwargs):
        states.append(kwargs["state"])
        models.append(self)
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(AWDLSTMLanguageModel, "forward", remember)
    step = model_step("train", f"awd_lstm_lm_mos_ptb --head-components 2 {WIDTHS}", CASE)
    step()
    weights = [parameter.detach().clone() for parameter in models[0].parameters()]
    step()
    assert states[0] is None and not states[1][0][0].requires_grad
    after = models[0].parameters()
    assert any(not torch.equal(a, b) for a, b in zip(weights, after, strict=True))


def test_the_baseline_is_compared_per_token_and_failures_are_told_in_a_line(monkeypatch):
    with pytest.raises(MeasurementFailed, match=r"^--head-components: .* has no such option"):
        run.measure("train", CASE, f"{SOFTMAX} --head-components 3", 1, 0)
    with pytest.raises(OutOfMemory, match=r"^RuntimeError: .*memory"):
        run.measure("loss", replace(LOSS, tokens=10**12), "naive", 1, 0)
    for error, kind in (
        (MemoryError("std::bad_alloc"), OutOfMemory),
        (ValueError("no layer memory_bank"), MeasurementFailed),
    ):
        measured = Mock(side_effect=error)
        with monkeypatch.context() as patch, pytest.raises(MeasurementFailed) as raised:
            patch.setattr(run, "measured", measured)
            run._reported()
        assert raised.type is kind
    case = replace(CASE, sentences=6)
    nine, two = [Timing(9.0, 8.0)], [Timing(2.0, 1.0)]
    monkeypatch.setattr(measuring, "alternate", lambda *_: [nine, two])
    for other, seconds in ((CASE, 6.0), (case, 2.0)):
        found = run.measured("train", case, SOFTMAX, 1, 0, SOFTMAX, other)
        assert found["baseline_seconds"] == [seconds]


@pytest.mark.parametrize(
    ("case", "each", "limit", "found", "smallest"),
    [
        (CASE, 100, 1_350, {"sentences": 13}, "one sentence or stream"),
        (LOSS, 100, 70_000, {"tokens": 640}, "64 tokens"),
    ],
)
def test_the_largest_batch_stays_below_the_limit(monkeypatch, case, each, limit, found, smallest):
    (field,), said = found, []

    def measure(kind, case, *_):
        return {"memory": each * getattr(case, field)}

    monkeypatch.setattr(run, "measure", measure)
    arguments = ("loss" if field == "tokens" else "train", case, SOFTMAX)
    assert run.largest_batch(*arguments, limit, 1, said.append) == replace(case, **found)
    assert f"{SOFTMAX}: {found[field]:,} {field} fit" in said
    assert any(line.endswith(" do not fit") for line in said)
    with pytest.raises(run.MeasurementFailed, match=f"--within.*little for {smallest}"):
        run.largest_batch(*arguments, 99, 1, print)


def test_presets_have_the_papers_sizes():
    case = presets("train")["ptb"]
    assert case.work() == 48 * 70
    # of the resolved configurations, as the papers print them
    sizes = {"awd_lstm_lm_softmax_ptb": 24.2, "awd_lstm_lm_mos_ptb --head-components 15": 21.5}
    for spec, millions in sizes.items():
        assert spec in (*case.models, case.baseline)
        assert parameters(spec, case) / 1e6 == pytest.approx(millions, abs=0.05)
    losses = presets("loss")
    for name, *wanted in (("ptb", 620, 280, 3360), ("one_billion", 1024, 900, 700)):
        for layer in ("mos", "mixtape"):
            case = losses[f"{name}/{layer}"]
            head = case.layer()
            assert [head.feature_dim, head.weight.size(1), case.tokens] == wanted
        unshared, shared = losses[f"{name}_more/mixtape_no_sharing"], losses[f"{name}/mixtape"]
        assert unshared == replace(shared, frequent=shared.classes)
    for count in (3, 5, 10):
        assert losses[f"ptb_more/mos_{count}"] == replace(losses["ptb/mos"], components=count)
    for language in ("de", "fr"):
        for layer in ("softmax", "mos", "mixtape"):
            train = train_of(f"wmt14_en_{language}/yang2019/{layer}")
            has_bias = train.get("head_bias", "false") == "true"
            assert losses[f"wmt_en_{language}/{layer}"].bias == has_bias, (language, layer)


def train_of(name: str) -> dict[str, Any]:
    recipe, _, conf = name.partition("/")
    return configuration.load(RECIPES / recipe / "conf" / f"{conf}.yaml").train


# -- the code that losses are compared with computes the same loss, also of a new layer --

pytestmark = pytest.mark.usefixtures("toys")
SIZES = {"tokens": 12, "dim": 8, "classes": 30, "dtype": "float64"}
SMOOTHED = {**SIZES, "label_smoothing": 0.1}
MOS_GSS = LossCase("mos", components=3, pointwise="gss", **SMOOTHED)
MIXTAPE = LossCase("mixtape", components=4, frequent=10, gate_dim=4, **SMOOTHED)
CASES = [
    LossCase("softmax", **SMOOTHED),
    LossCase("moc", components=3, pointwise="sigsoftmax", **SIZES),
    LossCase("mos", components=3, **SIZES),
    LossCase("mos", components=3, pointwise="plif", **SIZES),
    MOS_GSS,
    MIXTAPE,
]
# a structure and a function that the package does not have are measured without further code
TOY = LossCase("residual", tokens=24, dim=16, classes=50, pointwise="bend", label_smoothing=0.1)


@pytest.fixture(autouse=True)
def forget_compiled_code():
    """Torch refuses to compile one function for more than eight cases in a process."""
    torch.compiler.reset()


def assert_is_the_loss(implementation, case):
    head = case.build_head().double()
    features = torch.randn(case.tokens, case.dim, dtype=torch.float64, requires_grad=True)
    target = torch.arange(case.tokens)
    inputs = [features, *head.parameters()]
    want = head.nll(
        features, target, label_smoothing=case.label_smoothing, reduction="sum", impl="reference"
    ).loss
    got = loss_function(implementation, case)(head, features, target)
    # the naive code of MoS adds 1e-8 to probabilities
    close = {"rtol": 1e-5, "atol": 1e-6} if "gathered" not in implementation else {}
    torch.testing.assert_close(got, want, **close)
    for ours, theirs in zip(
        torch.autograd.grad(got, inputs), torch.autograd.grad(want, inputs), strict=True
    ):
        torch.testing.assert_close(ours, theirs, **close)


GATES = [replace(MIXTAPE, components=8), replace(MIXTAPE, components=3, gates="softmax")]
EAGER = [(name, case) for name in ("naive", "gathered") for case in [*CASES, *GATES, TOY]]
CAPTURED = [("compiled", MOS_GSS), ("gathered_compiled", MIXTAPE)]


@pytest.mark.parametrize(("implementation", "case"), EAGER + CAPTURED, ids=str)
def test_eager_and_captured_code_computes_the_loss(implementation, case, monkeypatch):
    """Leave out inductor, which takes long."""
    monkeypatch.setattr(implementations, "COMPILER", "aot_eager")
    assert_is_the_loss(implementation, case)


@pytest.mark.long
@pytest.mark.cpp
@pytest.mark.parametrize("implementation", ["compiled", "gathered_compiled"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_compiled_code_computes_the_loss(case, implementation):
    assert_is_the_loss(implementation, case)


def test_a_second_step_compiles_nothing(monkeypatch):
    """The first step of a process is the warm-up of the second, whose memory is measured."""
    compiled = []

    def compiler(graph, inputs):
        compiled.append(graph)
        return graph.forward

    monkeypatch.setattr(implementations, "COMPILER", compiler)
    case = LossCase("mos", components=3, **SIZES)
    implementations._compiled.cache_clear()
    loss_step("naive", LossCase("softmax", **SMOOTHED))()  # another layer's code does not matter
    for _ in range(2):
        loss_step("compiled", case)()
    assert len(compiled) == 1


@pytest.mark.parametrize("case", [*CASES, replace(MIXTAPE, components=2, frequent=30)], ids=str)
def test_the_floor_counts_the_operations_of_the_naive_code(case):
    """Count every product once forward and twice backward, as autograd does."""
    products = sum(6 * rows * inner * columns for rows, inner, columns in case.products())
    for implementation in ("gemm_floor", "naive"):
        step = loss_step(implementation, case)
        with FlopCounterMode(display=False) as counter:
            step()
        assert counter.get_total_flops() == products


def test_a_new_head_describes_itself():
    assert TOY.products() == [(24, 16, 16), (24, 16, 50)]
    assert available("liger", TOY) == "plain softmax only"
    for impl in ("gemm_floor", "naive", "reference", "chunked", "auto"):
        assert available(impl, TOY) is None
        loss_step(impl, TOY)()
    for impl in ("fused", "cpp", "triton"):
        assert available(impl, TOY) == "residual has no fused loss"
        assert available(impl, replace(TOY, head="softmax")) is None
    with pytest.raises(CaseError, match="did you mean 'residual'"):
        replace(TOY, head="resdual").layer()
