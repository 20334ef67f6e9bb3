"""Test the estimated cost of a training run, from its configuration and a measured step."""

from pathlib import Path

import pytest

from highrank_plugins.benchmarks.case import CaseError
from highrank_plugins.benchmarks.estimate import EstimateSettings, Training
from highrank_plugins.benchmarks.models import parameters
from highrank_plugins.training.configuration import load
from tests.benchmarks.test_bench import bench

RECIPES = Path(__file__).parents[2] / "recipes"
SIZES = ("layers=1", "embed_dim=8", "ffn_embed_dim=8")
TINY = [f"{side}_{size}" for side in ("encoder", "decoder") for size in SIZES]


def training(conf: str, *changes: str, **settings: int) -> Training:
    return Training.of(conf, load(RECIPES / conf, list(changes)), EstimateSettings(**settings))


@pytest.mark.parametrize(
    ("conf", "changes", "devices", "expected"),
    [
        ("yang2019/mixtape", [], 8, (4096, 32_768, 157 * 26)),
        ("big/mixtape", [], 32, (1024, 32_768, 39 * 26)),
        # without effective tokens every device adds its batch
        ("small/softmax", ["update_freq=3"], 4, (1024, 4 * 1024 * 3, 39 * 26)),
    ],
)
def test_a_run_is_read_from_its_configuration(conf, changes, devices, expected):
    conf = f"wmt14_en_de/conf/{conf}.yaml"
    ours = training(conf, *changes, devices=devices)
    max_tokens, *wanted = expected
    assert [ours.tokens, ours.case.work()] == wanted and ours.has_own_batch
    smaller = training(conf, *changes, devices=devices, batch=520)
    assert smaller.case.work() == 520 and not smaller.has_own_batch
    assert training(conf, *changes, devices=devices, batch=max_tokens) == ours
    if "yang" in conf:
        assert (ours.updates, ours.case.classes) == (300_000, 32_000)
        assert ours.arch == "transformer_mixtape_wmt_en_de_big"


def test_parameters_hours_and_costs_are_estimated():
    ours = training("wmt14_en_de/conf/small/softmax.yaml", *TINY, "data.vocab_size=100")
    attention, norm, feed_forward = 4 * (8 * 8 + 8), 16, 2 * (8 * 8 + 8)
    layers = 3 * attention + 2 * feed_forward + 5 * norm
    assert parameters(ours.arch, ours.case) == 100 * 8 + layers
    ours = training("wmt14_en_de/conf/yang2019/mixtape.yaml", devices=8)
    settings = EstimateSettings(devices=8, efficiency=0.5, price=3.0)
    # 300,000 · 32,768 tokens at half of 10,000 a second
    assert ours.row("a", 214_600_000, 10_000, 2**31, settings)[1:] == [
        "214.6 M", "10,000", "2.0", "300,000", "32,768", "546.1", "68.3", "1,638"
    ]  # fmt: skip
    slow = ours.row("a", 214_600_000, 3.8912, None, EstimateSettings())
    assert slow[2:4] == ["3.89", "-"] and len(slow) == 8


@pytest.mark.parametrize(
    ("conf", "change", "message"),
    [
        ("ptb/conf/yang2018/mos.yaml", "lr=1", "has no block `data`"),
        ("wmt14_en_de/conf/small/mos.yaml", "max_update=null", r"train\.max_update must be"),
        ("wmt14_en_de/conf/small/mos.yaml", "max_tokens=many", r"train\.max_tokens must be"),
        ("wmt14_en_de/conf/small/mos.yaml", "update_freq=4,2", r"train\.update_freq must be"),
        ("wmt14_en_de/conf/small/mos.yaml", "arch=null", r"train\.arch is missing"),
    ],
)
def test_a_cost_that_cannot_be_estimated_is_explained(conf, change, message):
    with pytest.raises(CaseError, match=message):
        training(conf, change)


def test_a_step_is_measured(tmp_path):
    conf = RECIPES / "wmt14_en_de" / "conf" / "small" / "mixtape.yaml"
    changes = [word for change in [*TINY, "data.vocab_size=100"] for word in ("--set", change)]
    words = ("--devices", 4, "--price", 2, "--repeats", 2, "--threads", 1, "--batch", 52)
    done = bench("estimate", conf, *changes, *words)
    assert done.exit_code == 0, done.stderr
    cells = done.stdout.splitlines()[-1].split(" | ")
    assert float(cells[2].replace(",", "")) > 0
    assert cells[3:6] == ["-", "4,000", "4,096"]  # a smaller step says nothing of the memory
    refused = bench("estimate", conf, "--set", "hed=3", "--repeats", 1)
    assert refused.exit_code == 2
    assert "unrecognized arguments: --hed 3; did you mean '--head'?" in refused.stdout
    file = tmp_path / "own.yaml"
    train = "{arch: transformer_own, user_dir: my_layers, max_tokens: 50, max_update: 3}"
    file.write_text(f"data: {{vocab_size: 100}}\ntrain: {train}\n")
    case = Training.of("own", load(file), EstimateSettings()).case
    assert case.user_dir == "my_layers" and "user" not in case.shape
