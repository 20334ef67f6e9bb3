"""The model of a GPU counts what losses and training steps do; measure_gpu.sh measures one."""

import re
import shlex
from pathlib import Path

import pytest

from highrank_plugins.benchmarks.case import LossCase, ModelCase, changed, named
from highrank_plugins.benchmarks.implementations import IMPLEMENTATIONS
from highrank_plugins.benchmarks.rows import read_csv
from scripts.roofline import Gpu, estimate, run_roofline
from scripts.whole_step import estimate_step
from tests.recipes.running import REPOSITORY as ROOT
from tests.recipes.running import run

SCRIPT, RECIPE = ROOT / "scripts" / "measure_gpu.sh", ROOT / "recipes" / "ptb"
PARTS = "machine kernels wmt ptb train train_ptb curves tests wmt_128k chunks tables".split()
CURVES = ["softmax_mos_settings", "mos", "mixtape", "mixtape"]
# as if it moved data and ran kernels in no time, and one product operation a second
PRODUCTS_ONLY = Gpu(1e30, 1 / 0.7, 1e30)
MEMORY_ONLY = Gpu(1 / 0.875, 1e30, 1e30)


def test_products_are_those_of_the_layer():
    for case in (
        LossCase("softmax", tokens=24, dim=16, classes=56, dtype="bfloat16", label_smoothing=0.1),
        LossCase("mos", tokens=24, dim=16, classes=56, components=3, dtype="bfloat16"),
    ):
        for impl in ("naive", "fused"):
            found = estimate(case, impl, PRODUCTS_ONLY)
            # a softmax over a few components is no product of the floor
            assert found.gemm_floor <= found.products * (1 + 1e-9) <= 1.01 * found.gemm_floor
            assert found.others == pytest.approx(0, abs=1e-12)


@pytest.mark.triton
@pytest.mark.parametrize(("presets", "implementations"), [
    (["wmt_en_de/softmax"], ["naive", "triton"]),
    pytest.param(["wmt_en_de"], ["naive", "fused", "triton"], marks=pytest.mark.long),
])  # fmt: skip
def test_the_documented_table_is_reproduced(presets, implementations):
    text = (ROOT / "docs" / "benchmarks" / "gpu.md").read_text(encoding="utf-8").splitlines()
    for line in run_roofline(presets, implementations, "h200").splitlines()[2:]:
        start = "|".join(line.split("|")[:3])
        kept = next(row for row in text if row.startswith(start) and "%" not in row)
        numbers = [[float(x.replace(",", "")) for x in of.split("|")[3:-1]] for of in (kept, line)]
        assert numbers[0] == pytest.approx(numbers[1], rel=0.03, abs=0.02)


SHAPE = " ".join(
    f"--{side}coder-{option}" for side in ("en", "de")
    for option in ("layers 1", "embed-dim 16", "ffn-embed-dim 32", "attention-heads 2")
)  # fmt: skip
STEP = ModelCase(classes=64, sentences=4, length=6, shape=SHAPE)


def test_more_classes_add_the_products_of_the_layer_and_parameters_to_the_update_of_adam():
    """Adam reads weight, gradient and two averages, and writes three of them."""

    def step(gpu, classes):
        return estimate_step(
            "transformer_softmax --head-loss fused", changed(STEP, {"classes": classes}), gpu
        )

    small, large = (step(PRODUCTS_ONLY, classes).products for classes in (64, 128))
    assert large - small == pytest.approx(6 * STEP.work() * 16 * 64, rel=0.01)
    small, large = (step(MEMORY_ONLY, classes).others for classes in (64, 64_064))
    added = 64_000 * 16 * 2  # bytes of the new rows of the embeddings, which are the layer's, too
    assert large - small > 7 * added


def test_the_commands_exist_and_their_packages_are_pinned(tmp_path):
    done = run(["bash", SCRIPT, "--dry-run", "--output", tmp_path / "new"])
    assert not (tmp_path / "new").exists()
    said = [line.removeprefix("== ").split(": ", 1) for line in done.stdout.splitlines()]
    lines = dict(said)
    assert list(lines) == PARTS
    curves = [re.findall(r"--conf (\S+)", words)[0] for name, words in said if name == "curves"]
    assert [Path(conf).name for conf in curves] == CURVES
    assert all((RECIPE / "conf" / f"{conf}.yaml").is_file() for conf in curves)
    for name in ("wmt", "train", "wmt_128k", "ptb", "chunks"):
        _, kind, *words = shlex.split(lines[name].removeprefix("highrank "))
        given = dict(zip(words[::2], words[1::2], strict=True))
        assert named(kind, given["--preset"])
        assert {*given.get("--impl", "auto").split(",")} <= {*IMPLEMENTATIONS}
        assert given["--device"] == "cuda" and given["--csv"].endswith(f"gpu_{name}.csv")
    # what a machine without a network lacks is pinned
    text = SCRIPT.read_text(encoding="utf-8")
    (lacking,) = re.findall(r'^lacking="(.*?)"', text, re.DOTALL | re.MULTILINE)
    pinned = (ROOT / "requirements" / "pinned.txt").read_text(encoding="utf-8").lower()
    assert all(f"\n{name.lower()}==" in f"\n{pinned}" for name in lacking.split())


@pytest.mark.long
def test_a_rehearsal_runs_the_chosen_parts(tmp_path):
    parts = ["--part", "ptb", "--part", "tables"]
    run(["bash", SCRIPT, "--rehearse", *parts, "--output", tmp_path / "new"])
    assert [row.tokens for row in read_csv(tmp_path / "new" / "gpu_ptb.csv")] == [8, 8, 8]
    assert "| ptb/mos tokens=8 | fused |" in (tmp_path / "new/tables.log").read_text()
