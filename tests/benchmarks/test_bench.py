"""`highrank bench` on small sizes, end to end."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest

from highrank_plugins.benchmarks.case import CaseError, LossCase
from highrank_plugins.benchmarks.estimate import EstimateSettings, Training
from highrank_plugins.benchmarks.models import parameters
from highrank_plugins.benchmarks.run import MeasurementFailed, measure
from highrank_plugins.common.provenance import revision
from highrank_plugins.training.configuration import load
from tests.cli import highrank

RECIPES = Path(__file__).parents[2] / "recipes"
SMALL = LossCase("mos", tokens=64, dim=16, classes=500, components=3)


def bench(*words):
    """Run `highrank bench` in this process, which has imported torch."""
    return highrank("bench", *words)


def test_a_loss_is_timed_and_written_to_csv(tmp_path):
    words = ["--preset", "softmax_ptb", "--tokens", "16,32", "--classes", "300",
             "--impl", "naive", "--repeats", "2", "--threads", "1",
             "--csv", tmp_path / "x.csv"]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "highrank_plugins.cli", "bench", "loss", *words],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "| softmax_ptb tokens=16 classes=300 | naive | 16 |" in done.stdout
    lines = list(csv.DictReader((tmp_path / "x.csv").open()))
    assert [line["tokens"] for line in lines] == ["16", "32"]
    assert all(float(line["milliseconds"]) > 0 < float(line["over_baseline"]) for line in lines)
    assert all(line["command"].startswith("highrank bench loss --preset") for line in lines)
    assert {line["revision"] for line in lines} == {revision()}
    again = bench("table", tmp_path / "x.csv")
    assert again.exit_code == 0 and again.stdout.strip() in done.stdout
    good = (tmp_path / "x.csv").read_text()
    for damaged in ("", "a,b\n1,2\n", good + "mos", good.replace(",32,", ",\0,")):
        (tmp_path / "x.csv").write_text(damaged)
        said = bench("table", tmp_path / "x.csv").stderr
        assert "x.csv:" in said and ": holds no measurement" in said and said.count("\n") == 1


@pytest.mark.parametrize("words, message", [
    (["loss", "--preset", "softmax_ptb", "--components", "2,4"], "--components: softmax has none"),
    (["loss", "--tokens", "0"], "--tokens must be at least 1"),
    (["loss", "--classes", "0"], "--classes must be at least 1"),
    (["loss", "--classes", "2000", "--preset", "techniques"], "frequent"),
    (["train", "--preset", "wmt"], "known: ui_strings_en_de"),
])  # fmt: skip
def test_bad_input_is_refused(words, message):
    done = bench(*words)
    assert done.exit_code == 2 and not done.stdout
    assert message in done.stderr and "Traceback" not in done.stderr


def test_memory_counts_the_tensors_of_naive_code():
    """Expect several tensors of N K M floats in naive code, and less than one in chunks."""
    whole = 4 * 32 * 32 * 3 * 5000
    case = LossCase("mos", tokens=32 * 32, dim=16, classes=5000, components=3)
    naive, ours = (measure("loss", case, name, 1, 1)["memory"]
                   for name in ("naive", "fused"))  # fmt: skip
    assert naive > 2 * whole > 2 * ours


def test_a_failed_implementation_is_named_and_the_others_are_kept(tmp_path, monkeypatch):
    cases = []

    def measured(kind, case, implementation, *others, **more):
        cases.append(case)
        if implementation != "fused":
            raise MeasurementFailed("needs a GPU")
        return {"seconds": [1.0], "baseline_seconds": [1.0], "memory": None, "threads": 1,
                "machine": "m", "processor_seconds": [1.0]}  # fmt: skip

    monkeypatch.setattr("highrank_plugins.benchmarks.run.measure", measured)
    done = bench("loss", "--preset", "softmax_ptb", "--impl", "triton,fused",
                 "--csv", tmp_path / "x.csv")  # fmt: skip
    assert done.exit_code == 1 and "triton failed: needs a GPU" in done.stdout
    assert "fused" in (tmp_path / "x.csv").read_text()
    # a layer of a user dir reaches the measuring process
    (package := tmp_path / "layers").mkdir()
    (package / "__init__.py").write_text("")
    done = bench("train", "--model", "transformer_own", "--user-dir", package)
    assert done.exit_code == 2 and "nothing could be measured" in done.stderr
    assert cases.pop().user_dir == str(package)


# -- the estimated cost of a training run, from its configuration and a measured step ------------

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
    with pytest.raises(SystemExit):
        parameters("", ours.case)  # argparse names the choices of a blank arch
    slow = ours.row("a", 214_600_000, 3.8912, None, EstimateSettings())
    assert slow[2:4] == ["3.89", "-"] and len(slow) == 8


@pytest.mark.parametrize(
    ("conf", "change", "message"),
    [
        ("ptb/conf/yang2018/mos.yaml", "lr=1", "has no block `data`"),
        ("wmt14_en_de/conf/small/mos.yaml", "max_update=null", r"train\.max_update must be"),
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
    file = tmp_path / "own.yaml"
    train = "{arch: transformer_own, user_dir: my_layers, max_tokens: 50, max_update: 3}"
    file.write_text(f"data: {{vocab_size: 100}}\ntrain: {train}\n")
    case = Training.of("own", load(file), EstimateSettings()).case
    assert case.user_dir == "my_layers" and "user" not in case.shape
