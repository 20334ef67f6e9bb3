"""The presets at the papers' sizes have the layers of the recipes' configurations."""

from typing import Any

import pytest
from fairseq import options

import highrank_plugins
from highrank_plugins.benchmarks.case import presets
from highrank_plugins.training import configuration
from highrank_plugins.training.command_line import words_of
from tests.recipes.running import RECIPES

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
RATE = "_lr"  # of a layer's own learning rate, which costs nothing


def train_of(name: str) -> dict[str, Any]:
    recipe, _, conf = name.partition("/")
    return configuration.load(RECIPES / recipe / "conf" / f"{conf}.yaml").train


def layer_of(words: list[str]) -> dict[str, Any]:
    """Return the options of the layer after the architecture's defaults."""
    highrank_plugins.register()
    parser = options.get_training_parser()
    args = options.parse_args_and_arch(parser, ["nowhere", *words])
    named = {name: value for name, value in vars(args).items() if name.startswith("head")}
    return {name: value for name, value in named.items() if not name.endswith(RATE)}


@pytest.mark.parametrize("kind", ["train", "generate"])
@pytest.mark.parametrize("preset", CONFIGURATIONS)
def test_a_preset_has_the_layers_of_the_configurations(kind, preset):
    if preset not in presets(kind):
        assert kind == "generate"
        return
    case = presets(kind)[preset]
    for spec, conf in zip(case.models, CONFIGURATIONS[preset], strict=True):
        if conf is None:
            assert spec == case.baseline
            continue
        train = train_of(conf)
        wanted = layer_of(words_of(train))
        task = ["--task", case.task, "--criterion", train["criterion"]]
        found = layer_of([*task, "--arch", *spec.split(), *case.shape.split()])
        other = {name for name in wanted if wanted[name] != found[name]}
        changed = CHANGED.get(preset, {})
        assert found.keys() == wanted.keys()
        if other:
            assert {name: found[name] for name in other} == changed, (spec, conf)


def test_losses_of_translators_have_the_bias_of_the_configurations():
    cases = presets("loss")
    for language in ("de", "fr"):
        for layer in ("softmax", "mos", "mixtape"):
            case = cases[f"wmt_en_{language}/{layer}"]
            train = train_of(f"wmt14_en_{language}/yang2019/{layer}")
            assert case.bias == (train.get("head_bias", "false") == "true"), (language, layer)
