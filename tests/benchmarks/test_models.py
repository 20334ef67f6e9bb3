"""`highrank bench train`: a chunk of streams, batches by memory, the monitor; presets of papers."""

from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from fairseq import options

import highrank_plugins
from highrank_plugins.benchmarks import measuring, run
from highrank_plugins.benchmarks.case import LossCase, ModelCase, presets
from highrank_plugins.benchmarks.measuring import MeasurementFailed, OutOfMemory, Timing
from highrank_plugins.benchmarks.models import model_step, parameters
from highrank_plugins.models import head_monitor
from highrank_plugins.models.awd_lstm_lm import AWDLSTMLanguageModel
from highrank_plugins.training import configuration
from highrank_plugins.training.command_line import words_of
from tests.recipes.running import RECIPES
from tests.trainings import NARROW

SIZES = "--decoder-embed-dim 8 --decoder-hidden-size 12 --decoder-last-hidden-size 10"
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
    step = model_step("train", f"awd_lstm_lm_mos_ptb --head-components 2 {SIZES}", CASE)
    step()
    weights = [parameter.detach().clone() for parameter in models[0].parameters()]
    step()
    assert states[0] is None and not states[1][0][0].requires_grad
    after = models[0].parameters()
    assert any(not torch.equal(a, b) for a, b in zip(weights, after, strict=True))


@pytest.mark.parametrize(("option", "measured"), [("--head-monitor 1", 2), ("", 0)])
def test_the_monitor_measures_at_every_step(option, measured, monkeypatch):
    seen = []
    monkeypatch.setattr(head_monitor, "take_snapshot", lambda head, *batch: seen.append(batch))
    case = ModelCase(classes=30, sentences=2, length=5, shape=" ".join(NARROW))
    step = model_step("train", f"transformer_mos {option}", case)
    step()
    step()
    assert [features.shape for features, *_ in seen] == [(2, 5, 32)] * measured
    model_step("generate", "transformer_mos", case)()  # beam search is a step, too


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


# preset of `bench train`, also with --generate → each model, in order, and its configuration
CONFIGURATIONS: dict[str, list[str | None]] = {
    # None is fairseq's own
    "wmt_en_de": [None, *(f"wmt14_en_de/yang2019/{of}" for of in ("mixtape", "mixtape", "mos"))],
    "wmt_en_fr": [None, "wmt14_en_fr/yang2019/mixtape", "wmt14_en_fr/yang2019/mos"],
    "ptb": [
        *(f"ptb/yang2018/{of}" for of in ("mos_k3", "mos_k5", "mos_k10", "mos")),
        *(f"ptb/yang2019/{of}" for of in ("mixtape", "mixtape_no_sharing")),
    ],
    "wikitext2": ["wikitext2/yang2018/mos", "wikitext2/yang2019/mixtape"],
    "one_billion": [
        "one_billion_word/yang2018/mos",
        *(f"one_billion_word/yang2019/{of}" for of in ("mixtape", "mixtape_no_sharing")),
    ],
}
# Mixtape with a tenth of the classes frequent, where the paper has half
CHANGED = {"wmt_en_de": {"head_frequent_ratio": 0.1}}


def train_of(name: str) -> dict[str, Any]:
    recipe, _, conf = name.partition("/")
    return configuration.load(RECIPES / recipe / "conf" / f"{conf}.yaml").train


def layer_of(words: list[str]) -> dict[str, Any]:
    """Return the options of the layer after the architecture's defaults, but its learning rate."""
    highrank_plugins.register()
    parser = options.get_training_parser()
    args = vars(options.parse_args_and_arch(parser, ["nowhere", *words]))
    return {n: args[n] for n in args if n.startswith("head") and not n.endswith("_lr")}


@pytest.mark.parametrize("preset", CONFIGURATIONS)
def test_a_preset_has_the_layers_of_the_configurations(preset):
    for case in (
        known[preset] for kind in ("train", "generate") if preset in (known := presets(kind))
    ):
        for spec, conf in zip(case.models, CONFIGURATIONS[preset], strict=True):
            if conf is None:
                assert spec == case.baseline
                continue
            train = train_of(conf)
            wanted = layer_of(words_of(train))
            task = ["--task", case.task, "--criterion", train["criterion"]]
            found = layer_of([*task, "--arch", *spec.split(), *case.shape.split()])
            assert found.keys() == wanted.keys()
            other = {name: found[name] for name in wanted if wanted[name] != found[name]}
            assert other in ({}, CHANGED.get(preset)), (spec, conf)
