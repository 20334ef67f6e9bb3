"""Any checkpoint along a text: what stock fairseq computes, every token once; kept in files."""

import errno
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from highrank_plugins.analysis.spectrum import spectrum
from highrank_plugins.inference.collector import (
    Collector,
    Processes,
    read_collection,
    rows_of,
    write_collection,
)
from highrank_plugins.inference.loading import load_model
from highrank_plugins.measures.base import Block
from highrank_plugins.measures.components import ComponentMeasure
from tests.built import Built, parse
from tests.cli import highrank
from tests.fairseq_cli import FORKS, REPOSITORY
from tests.free_port import free_port
from tests.inference.checkpoints import FEW_KNOTS, write_checkpoint
from tests.measures.test_every_measure import flat
from tests.models import small
from tests.tasks.built import build

STOCK = ["--criterion", "cross_entropy"]
STREAM = "awd_lstm_lm_plif"
# the last is trained on lines, and carries no state
ARCHS = """transformer transformer_mos transformer_lm transformer_lm_mixtape lstm
    awd_lstm_lm_softmax""".split()
ALL = ["log_probs", "logits", "features", "targets"]


@pytest.fixture(scope="module")
def kinds(mt_data, lm_data, stream_data, tmp_path_factory):
    """Return a function: arch → checkpoint, data, and the checkpoint's model."""

    @cache
    def kind(arch):
        data = mt_data if "_lm" not in arch else lm_data
        if arch == STREAM:
            data, built = stream_data, build(stream_data, *FEW_KNOTS, arch=arch)
        else:
            built = small.build(data, arch, *(STOCK if arch in ARCHS[::2] else []))
        path = write_checkpoint(tmp_path_factory.mktemp(arch) / "a.pt", built)
        built.model.eval()
        return path, str(data), built

    return kind


def joined(collector, name="log_probs"):
    return torch.cat([getattr(block, name) for block in collector.blocks()])


def parts(count, *given, **options):
    """Return what each of several processes collects."""
    ranks = [Processes(rank, count) for rank in range(count)]
    found = [joined(Collector.open(*given, processes=one, **options)) for one in ranks]
    assert min(map(len, found)) > 0
    return torch.cat(found)


@pytest.mark.parametrize("arch", ARCHS)
def test_blocks_equal_fairseqs_predictions_in_text_order(arch, kinds):
    path, data, built = kinds(arch)
    log_probs, words = built.log_probs("valid")
    collector = Collector.open(path, data, "valid", rows=80)
    assert collector.total == len(words) and torch.equal(joined(collector, "target"), words)
    near = {"rtol": 1e-4, "atol": 1e-4}
    torch.testing.assert_close(joined(collector), log_probs, **near)
    assert [block.first for block in collector.blocks()] == collector.starts[:-1]
    for block in Collector.open(path, data, "valid", tokens=30).blocks():
        if arch == "transformer_mos":  # only layers with a single logit vector have logits
            assert block.logits is None and not collector.head.has_logits
        else:
            torch.testing.assert_close(block.logits.log_softmax(-1), block.log_probs)
    wide = Collector.open(path, data, "valid", tokens=41, rows=60, dtype="float64")
    found = joined(wide)
    assert found.dtype == torch.float64 and len(found) == wide.total == 41
    torch.testing.assert_close(found.float(), log_probs[:41], **near)
    assert found.logsumexp(1).abs().max() < 1e-12  # rows sum to 1 as only float64 can
    whole = joined(Collector.open(path, data, "valid", rows=60, tokens=300))
    for count in (2, 3):
        assert torch.equal(parts(count, path, data, "valid", rows=60, tokens=300), whole)


def test_a_stream_carries_its_state_through_blocks_and_processes(kinds):
    path, data, built = kinds(STREAM)
    whole = Collector.open(path, data, "test", rows=1000)
    target = joined(whole, "target")
    source = torch.cat([torch.tensor([built.task.dictionary.eos()]), target[:-1]])
    with torch.no_grad():
        want = built.model(source.unsqueeze(0))[0][0]
    torch.testing.assert_close(joined(whole), want)
    torch.testing.assert_close(parts(3, path, data, "test", rows=7), want)


def test_other_words_layers_and_texts_are_refused(kinds, lm_data, stream_data, tmp_path):
    path, words = tmp_path / "a.pt", ["--max-source-positions", 4, "--max-target-positions", 4]

    def refused(file, data, message, split="valid", **options):
        with pytest.raises((OSError, ValueError, FloatingPointError), match=message):
            joined(Collector.open(file, str(data), split, **options))

    mos, data, _ = kinds("transformer_mos")
    refused(mos, data, "nothing", split="nothing")
    two = {"rows": 10**6, "processes": Processes(0, 2)}
    refused(mos, data, "2 processes are too many for 1 batch of", **two)
    short = write_checkpoint(path, small.build(data, "transformer_mos", *words))
    refused(short, data, r"valid: \d+ of \d+ sentences are longer than")
    message = r"dict\.en\.txt: no such file. A checkpoint holds no words"
    refused(kinds("transformer")[0], tmp_path, message)
    path.write_bytes(kinds("transformer_lm")[0].read_bytes())
    refused(path, stream_data, r"a\.pt: the target dictionary")
    state = torch.load(path)
    del state["task_state"]["dictionaries"]  # as fairseq without our hooks
    torch.save(state, path)
    refused(path, stream_data, r"a\.pt does not fit .* size mismatch")
    state["model"]["decoder.layers.0.fc1.bias"].fill_(float("nan"))
    torch.save(state, path)
    refused(path, lm_data, r"token 0 of the text: .* are NaN")
    words = "--criterion adaptive_loss --adaptive-softmax-cutoff 20,50 --ddp-backend legacy_ddp"
    write_checkpoint(path, small.build(lm_data, "transformer_lm", *words.split()))
    refused(path, lm_data, r"a\.pt: the output layer of .* is not one matrix")
    words = "--arch roberta_base --encoder-layers 1 --task masked_lm --criterion masked_lm"
    write_checkpoint(path, Built.of(parse([str(lm_data), *words.split()])))
    refused(path, lm_data, r"a\.pt: --arch roberta_base has no decoder")


def test_the_first_slopes_are_those_that_the_seed_draws(stream_data, tmp_path):
    built = build(stream_data, "--head-pointwise", "plif", "--seed", 7)
    first = built.model.head.pointwise.slope_logits.detach().clone()
    # its weights are others than the model was built with
    path = write_checkpoint(tmp_path / "a.pt", built)
    loaded = load_model(path, str(stream_data))
    state = torch.get_rng_state()
    assert torch.equal(loaded.first_head().pointwise.slope_logits, first)
    assert torch.equal(torch.get_rng_state(), state)
    measure = ComponentMeasure()
    measure.start(loaded.words)
    features = torch.randn(6, loaded.head.embed_dim)
    measure.observe(Block(loaded.head, features, torch.arange(6), first=0))
    use = measure.merge([measure.part()]).slope_use
    moved = loaded.head.pointwise.slope_logits.exp().log1p() - first.exp().log1p()
    assert use.moved == pytest.approx(moved.square().mean().sqrt().item(), rel=1e-5)
    assert use.ppl != use.ppl_untrained
    for name in ("finetune_from_model", "restore_file"):  # those of another run came first
        saved = torch.load(path, weights_only=True)
        saved["cfg"]["checkpoint"][name] = "other.pt"
        torch.save(saved, tmp_path / "b.pt")
        assert load_model(tmp_path / "b.pt", str(stream_data)).words.first is None


# -- files ----------------------------------------------------------------------------------------


@pytest.fixture
def collector(kinds):
    """Return a function that opens the first tokens of a test text."""

    def collector(arch=STREAM, split="test", **options):
        return Collector.open(*kinds(arch)[:2], split, **({"rows": 40, "tokens": 60} | options))

    return collector


@pytest.mark.parametrize("arch", [STREAM, "transformer"])
def test_the_arrays_equal_the_blocks(arch, collector, tmp_path):
    folder = tmp_path / "c"
    done = write_collection(collector(arch), folder, ALL)
    assert done["rows"] == 60 and done["what"] == ALL
    arrays = read_collection(folder)
    there = {"collection.json", *(f"{name}.npy" for name in ALL)}
    assert {path.name for path in folder.iterdir()} == there
    blocks = list(collector(arch).blocks())
    for name, array in arrays.items():
        of_block = "target" if name == "targets" else name
        want = torch.cat([getattr(block, of_block) for block in blocks])
        assert torch.equal(torch.from_numpy(np.array(array)), want)
    found = spectrum(rows_of(arrays["log_probs"], 7)).values
    assert torch.allclose(found, spectrum(b.log_probs for b in blocks).values, rtol=1e-9)
    other = collector(arch, "valid")
    other.split = "test"  # as if other data lay in the folder
    for another in (other, collector(arch, tokens=50)):
        with pytest.raises(ValueError, match="c holds something else; name another folder"):
            write_collection(another, folder, ALL)


def test_nan_leaves_an_unfinished_collection_that_starts_again(collector, tmp_path, monkeypatch):
    feature, folder = Block.log_probs.func, tmp_path / "c"

    def broken(block):
        if block.first == 40:
            block.features = block.features * float("nan")
        return feature(block)

    with monkeypatch.context() as patch:
        patch.setattr(Block, "log_probs", property(broken))
        with pytest.raises(FloatingPointError, match=r"token 40 .* collected before it is kept"):
            write_collection(collector(), folder, ["log_probs"])
    kept = np.load(tmp_path / "c.part" / "log_probs.npy")
    assert (kept[:40] < 0).all() and not kept[40:].any()
    with pytest.raises(ValueError, match="run the same `highrank analyse collect` again"):
        read_collection(folder)
    for _ in range(2):  # the second finds it complete
        assert write_collection(collector(), folder, ["targets"])["rows"] == 60
    assert [*read_collection(folder)] == ["targets"]
    assert not (folder / "log_probs.npy").exists() and not (tmp_path / "c.part").exists()


def test_a_full_disk_is_named_before_anything_is_computed(collector, tmp_path, monkeypatch):
    """A process that writes into a map on a full disk is killed by SIGBUS, without a word."""

    def full(file, start, length):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    monkeypatch.setattr(Collector, "blocks", None)
    with pytest.raises(OSError, match=r"the disk is full: .*Free some space.*c\.part"):
        write_collection(collector(), tmp_path / "c", ["targets"])


def test_other_quantities_and_folders_are_refused(collector, tmp_path):
    (mine := tmp_path / "mine").mkdir()
    (mine / "thesis.txt").touch()
    for arch, what, message in (
        ("transformer_mos", "logits", "--what logits: mos mixes"),
        (STREAM, "logit", "--what logit: expected some of log_probs,logits"),
        (STREAM, "targets", "mine holds something else; name another folder"),
    ):
        with pytest.raises(ValueError, match=message):
            write_collection(collector(arch), mine, [what])
    assert [*mine.iterdir()] == [mine / "thesis.txt"] and not (tmp_path / "mine.part").exists()


# -- several processes ----------------------------------------------------------------------------

MEASURES = "spectrum,kld,context-dependence,predictions,components,retention"
SIZE = ["--tokens", "60", "--segment", "20"]
VOLATILE = dict.fromkeys(("command", "versions", "git", "hardware", "processes"))


def run_rank(words, rank, port):
    """Run a rank as torchrun does, but forked from a process that has imported fairseq."""
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    os.environ |= place | {"RANK": str(rank)}
    sys.exit(highrank(*words).exit_code)


def test_two_processes_give_the_measures_of_one(kinds, tmp_path):
    options = [*SIZE, "--dtype", "float64", "--pairs", "50", "--bands", "2,5", "--output"]
    words, port = ["measure", MEASURES, *kinds(STREAM)[:2], *options], str(free_port())
    two = [*words, str(tmp_path / "two")]
    ranks = [FORKS.Process(target=run_rank, args=(two, rank, port)) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(120)
        process.kill()
    assert [process.exitcode for process in ranks] == [0, 0]
    done = highrank(*words, str(tmp_path / "one"))
    assert done.exit_code == 0, done.output
    assert len([*(tmp_path / "one").iterdir()]) == 6
    for path in (tmp_path / "one").iterdir():
        one, two = (
            flat(json.loads((tmp_path / of / path.name).read_text()) | VOLATILE)
            for of in ("one", "two")
        )
        assert two == pytest.approx(one, rel=1e-6, abs=1e-9), path.name
    for count in (1, 2, 3, 7):
        shares = [Processes(rank, count).share(7) for rank in range(count)]
        assert [i for share in shares for i in share] == list(range(7))
        assert min(map(len, shares)) >= 7 // count


def test_torchrun_writes_the_memory_maps_of_one_process(kinds, tmp_path):
    torchrun = Path(sys.executable).with_name("torchrun")
    words = ["analyse", "collect", *kinds(STREAM)[:2], *SIZE, "--output"]
    line = [torchrun, "--standalone", "--nproc-per-node=2", "-m", "highrank_plugins.cli", *words]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        [*line, tmp_path / "two"], env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count('"rows": 60') == 1
    words.append(str(tmp_path / "one"))
    assert highrank(*words).exit_code == 0
    one, two = read_collection(tmp_path / "one"), read_collection(tmp_path / "two")
    assert one.keys() == two.keys() == {"log_probs", "features", "targets"}
    assert all(np.allclose(one[name], two[name], rtol=1e-6) for name in one)
    described = [(tmp_path / name / "collection.json").read_text() for name in ("one", "two")]
    assert described[0] == described[1]
