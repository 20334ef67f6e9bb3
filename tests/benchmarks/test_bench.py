"""`highrank bench` on small sizes, end to end."""

import csv
import subprocess
import sys
from dataclasses import replace
from functools import wraps

import pytest

from highrank_plugins.benchmarks.case import LossCase
from highrank_plugins.benchmarks.implementations import loss_step
from highrank_plugins.benchmarks.rows import Row, write_csv
from highrank_plugins.benchmarks.run import MeasurementFailed, measure
from highrank_plugins.common.provenance import revision
from highrank_plugins.heads import Head
from tests.cli import highrank

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


@pytest.mark.parametrize("words, message", [
    (["loss", "--preset", "mos_ptbb"], "did you mean 'mos_ptb'"),
    (["loss", "--impl", "fusde", "--preset", "softmax_ptb"], "did you mean 'fused'"),
    (["loss", "--tokens", "many"], "--tokens many"),
    (["loss", "--tokens", "0"], "--tokens must be at least 1"),
    (["loss", "--classes", "2000", "--preset", "techniques"], "must be at least 10000, S of"),
    (["loss", "--dtype", "float23"], "did you mean 'float32'"),
    (["train", "--device", "cuda:99"], "--device cuda:99"),
    (["loss", "--reduction", "mean"], "--reduction mean"),
    (["loss", "--csv", "/tmp"], "--csv /tmp: name a file"),
    (["train", "--model", " "], "--model: expected an arch"),
    (["train", "--preset", "wmt"], "known: ui_strings_en_de"),
    (["loss", "--head", "moss"], "--head moss does not exist; did you mean 'mos'"),
    (["loss", "--pointwise", "gs"], "--pointwise gs does not exist; did you mean 'gss'"),
])  # fmt: skip
def test_bad_input_is_refused(words, message):
    done = bench(*words)
    assert done.exit_code == 2 and not done.stdout
    assert message in done.stderr and "Traceback" not in done.stderr


def test_tables_of_several_files_name_their_own_machines(tmp_path):
    paths = [tmp_path / "first.csv", tmp_path / "second.csv"]
    measured = {"seconds": [1.0], "baseline_seconds": [2.0], "processor_seconds": [1.0]}
    for path in paths:
        more = {"memory": None, "threads": 1, "machine": path.stem}
        write_csv([Row.of(("c", "naive", "gemm_floor"), 64, measured | more)], path)
    done = bench("table", *paths)
    assert done.stdout.startswith("first\n\n| case |") and "\n\nsecond\n\n| case |" in done.stdout
    heading = paths[0].read_text().splitlines()[0]
    for text, message in (f"{heading}\n", "holds no measurements"), ("a,b\n1,2\n", "milliseconds"):
        paths[0].write_text(text)
        done = bench("table", paths[0])
        assert done.exit_code == 2 and "first.csv" in done.stderr and message in done.stderr


def test_memory_counts_the_tensors_of_naive_code():
    """Expect several tensors of N K M floats in naive code, and less than one in chunks."""
    whole = 4 * 32 * 32 * 3 * 5000
    case = LossCase("mos", tokens=32 * 32, dim=16, classes=5000, components=3)
    naive, ours = (measure("loss", case, name, 1, 1)["memory"]
                   for name in ("naive", "fused"))  # fmt: skip
    assert naive > 2 * whole > 2 * ours


def test_the_memory_of_a_chunk_reaches_the_loss(monkeypatch):
    asked, nll = [], Head.nll

    @wraps(nll)
    def noted(*args, **words):
        asked.extend(value for name, value in words.items() if name == "memory")
        return nll(*args, **words)

    monkeypatch.setattr(Head, "nll", noted)
    for mib in (0, 3):
        loss_step("fused", replace(SMALL, memory=mib))()
    assert asked == [None, 3 * 2**20]


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
    for kind in ([], ["--generate"]):
        (package := tmp_path / f"layers_for_{len(kind)}").mkdir()
        (package / "__init__.py").write_text("")
        done = bench("train", *kind, "--model", "transformer_own", "--user-dir", package)
        assert done.exit_code == 2 and "nothing could be measured" in done.stderr
        assert cases.pop().user_dir == str(package)
