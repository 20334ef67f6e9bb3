"""Test the estimated cost of a training run, from its configuration and a measured step."""

from pathlib import Path

import pytest

from highrank_plugins.benchmarks.case import CaseError
from highrank_plugins.benchmarks.estimate import CostEstimate, Training, estimates_table
from highrank_plugins.benchmarks.models import parameters
from highrank_plugins.training.configuration import load
from tests.benchmarks.test_bench import bench

RECIPES = Path(__file__).parents[2] / "recipes"
TINY = [f"encoder_{size}" for size in ("layers=1", "embed_dim=8", "ffn_embed_dim=8")] + [
    f"decoder_{size}" for size in ("layers=1", "embed_dim=8", "ffn_embed_dim=8")
]


def training(conf: str, *changes: str, devices: int = 1) -> Training:
    return Training.of(conf, load(RECIPES / conf, list(changes)), devices)


def test_the_mixtape_papers_run_is_read_from_its_configuration():
    ours = training("wmt14_en_de/conf/yang2019/mixtape.yaml", devices=8)
    assert (ours.updates, ours.tokens, ours.classes) == (300_000, 32_768, 32_000)
    assert ours.arch == "transformer_mixtape_wmt_en_de_big"
    assert ours.case(None).work() == 157 * 26
    assert ours.case(520).work() == 520


def test_a_batch_is_the_share_of_one_of_many_devices():
    ours = training("wmt14_en_de/conf/big/mixtape.yaml", devices=32)
    assert (ours.max_tokens, ours.tokens) == (1024, 32_768)
    assert ours.case(None).work() == 39 * 26


def test_without_effective_tokens_every_device_adds_its_batch():
    ours = training("wmt14_en_de/conf/small/softmax.yaml", "update_freq=3", devices=4)
    assert ours.tokens == 4 * 1024 * 3


def test_parameters_are_counted_layer_by_layer():
    ours = training("wmt14_en_de/conf/small/softmax.yaml", *TINY, "data.vocab_size=100")
    attention, norm, feed_forward = 4 * (8 * 8 + 8), 16, 2 * (8 * 8 + 8)
    encoder = attention + feed_forward + 2 * norm
    decoder = 2 * attention + feed_forward + 3 * norm
    assert parameters(ours.arch, ours.case(None)) == 100 * 8 + encoder + decoder


def test_hours_and_costs_are_estimated():
    ours = training("wmt14_en_de/conf/yang2019/mixtape.yaml", devices=8)
    found = CostEstimate(ours, 214_600_000, 10_000, 2**31, "a machine")
    hours = 300_000 * 32_768 / 10_000 / 3600
    assert found.device_hours(1.0) == pytest.approx(hours)
    row = estimates_table([found], 8, 0.5, 3.0).splitlines()[-1]
    assert "| 214.6 M | 10,000 | 2.0 | 300,000 | 32,768 | 546.1 | 68.3 | 1,638 |" in row
    slow = CostEstimate(ours, 214_600_000, 3.8912, None, "a machine")
    assert "| 214.6 M | 3.89 | - |" in estimates_table([slow], 8, 0.5, 3.0)


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


def test_a_step_is_measured():
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


def test_layers_of_a_user_dir_are_measured(tmp_path):
    file = tmp_path / "own.yaml"
    file.write_text(
        "data: {vocab_size: 100}\n"
        "train: {arch: transformer_own, user_dir: my_layers, max_tokens: 50, max_update: 3}\n"
    )
    case = Training.of("own", load(file), devices=1).case(None)
    assert case.user_dir == "my_layers" and "user" not in case.shape
