"""The configurations of the language-model recipes say what a repeated training run needs."""

from pathlib import Path

import pytest

from highrank_plugins.training.configuration import load_tree, validate
from tests.recipes.running import RECIPES

# recipe → what its architectures end with
PRESETS = {"ptb": "ptb", "wikitext2": "wt2", "one_billion_word": "1b", "text8": "text8"}
CONFS = [
    path
    for recipe in PRESETS
    for path in sorted((RECIPES / recipe / "conf").rglob("*.yaml"))
    if not path.stem.startswith("base")  # those are only inherited from
]


def name_of(path: Path) -> str:
    return str(path.relative_to(RECIPES)).replace("/conf/", "/").removesuffix(".yaml")


@pytest.mark.parametrize("path", CONFS, ids=name_of)
def test_a_configuration_is_complete(path):
    configuration = validate(load_tree(path, []))
    train = configuration.train
    assert train["arch"].endswith("_" + PRESETS[path.relative_to(RECIPES).parts[0]])
    assert {"task", "criterion", "optimizer", "lr", "batch_size", "max_epoch", "seed"} <= set(train)
    assert ("head_plif_lr" in train) == ("plif" in train["arch"] and "frozen" not in path.stem)
    if path.parent.name == "parthiban2021":
        assert train.get("asgd_at_epoch") == (200 if path.stem.endswith("_et") else None)


@pytest.mark.parametrize("recipe", ["ptb", "wikitext2", "one_billion_word"])
def test_full_size_mixtape_has_the_rates_of_the_small_one(recipe):
    """On Penn Treebank the printed rate was seen to train at the papers' width."""
    small = load_tree(RECIPES / "ptb" / "conf" / "small" / "mixtape_regularised.yaml", [])
    full = load_tree(RECIPES / recipe / "conf" / "yang2019" / "mixtape.yaml", [])
    shared = ["head_gate_weight_norm", "head_gate_noise"]
    shared += ["lr", "warmup_updates"] if recipe != "ptb" else []
    if recipe != "one_billion_word":  # which has no dropout
        shared.append("head_gate_dropout")
    want, got = (validate(tree).train for tree in (small, full))
    assert {name: got[name] for name in shared} == {name: want[name] for name in shared}


def test_every_base_is_used():
    used = {
        (path.parent / line.removeprefix("base: ")).resolve()
        for path in RECIPES.glob("*/conf/**/*.yaml")
        for line in path.read_text().splitlines()
        if line.startswith("base: ")
    }
    bases = set(RECIPES.glob("*/conf/**/*.yaml"))
    assert {path for path in bases if path.stem.startswith("base")} <= used
