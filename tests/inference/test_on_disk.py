"""Memory maps of a collection: equal to the blocks, or refused."""

import numpy as np
import pytest
import torch

from highrank_plugins.analysis.spectrum import spectrum
from highrank_plugins.inference.collector import (
    Block,
    Collector,
    read_collection,
    rows_of,
    write_collection,
)
from tests.inference.checkpoints import write_checkpoint
from tests.models import small
from tests.tasks.built import build

ALL = ["log_probs", "logits", "features", "targets"]


@pytest.fixture(scope="module")
def stream(stream_data, tmp_path_factory):
    path = tmp_path_factory.mktemp("stream") / "a.pt"
    return write_checkpoint(path, build(stream_data)), str(stream_data)


@pytest.fixture(scope="module")
def sentences(mt_data, tmp_path_factory):
    path = tmp_path_factory.mktemp("sentences") / "a.pt"
    stock = small.build(mt_data, "transformer", "--criterion", "cross_entropy")
    return write_checkpoint(path, stock), str(mt_data)


@pytest.fixture(params=["stream", "sentences"])
def either(request):
    return request.getfixturevalue(request.param)


def collector(either, **options):
    return Collector.open(*either, "test", **({"rows": 40, "tokens": 60} | options))


def test_the_arrays_equal_the_blocks(either, tmp_path):
    done = write_collection(collector(either), tmp_path / "c", ALL)
    assert done["rows"] == 60 and done["what"] == ALL
    arrays = read_collection(tmp_path / "c")
    assert sorted(path.name for path in (tmp_path / "c").iterdir()) == sorted(
        ["collection.json", *(f"{name}.npy" for name in ALL)]
    )
    blocks = list(collector(either).blocks())
    for name, array in arrays.items():
        of_block = "target" if name == "targets" else name
        want = torch.cat([getattr(block, of_block) for block in blocks])
        assert torch.equal(torch.from_numpy(np.array(array)), want)
    found = spectrum(rows_of(arrays["log_probs"], 7)).values
    assert torch.allclose(found, spectrum(b.log_probs for b in blocks).values, rtol=1e-9)


def test_nan_leaves_an_unfinished_collection_that_starts_again(stream, tmp_path, monkeypatch):
    feature = Block.log_probs.func

    def broken(block):
        if block.first == 40:
            block.features = block.features * float("nan")
        return feature(block)

    with monkeypatch.context() as patch:
        patch.setattr(Block, "log_probs", property(broken))
        with pytest.raises(FloatingPointError, match=r"token 40 .* collected before it is kept"):
            write_collection(collector(stream), tmp_path / "c", ["log_probs"])
    kept = np.load(tmp_path / "c.part" / "log_probs.npy")
    assert (kept[:40] < 0).all() and not kept[40:].any()
    with pytest.raises(ValueError, match="run the same `highrank analyse collect` again"):
        read_collection(tmp_path / "c")
    write_collection(collector(stream), tmp_path / "c", ["targets"])
    assert [*read_collection(tmp_path / "c")] == ["targets"]
    assert not (tmp_path / "c" / "log_probs.npy").exists() and not (tmp_path / "c.part").exists()


def test_another_collection_is_refused(stream, tmp_path):
    write_collection(collector(stream), tmp_path / "c", ["targets"])
    assert write_collection(collector(stream), tmp_path / "c", ["targets"])["rows"] == 60
    with pytest.raises(ValueError, match=r"holds another collection \(text, rows differ\)"):
        write_collection(collector(stream, tokens=50), tmp_path / "c", ["targets"])
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").touch()
    with pytest.raises(ValueError, match="exists and is not a collection"):
        write_collection(collector(stream), tmp_path / "mine", ["targets"])


def test_another_text_or_another_part_of_it_is_refused(either, stream_data, tmp_path):
    write_collection(collector(either), tmp_path / "c", ["targets"])
    other = Collector.open(*either, "valid", rows=40, tokens=60)
    other.split = "test"  # as if other data lay in the folder
    with pytest.raises(ValueError, match="holds another collection"):
        write_collection(other, tmp_path / "c", ["targets"])


def test_features_that_are_nan_are_not_written(stream, tmp_path):
    broken = collector(stream)
    with torch.no_grad():
        next(broken.loaded.model.decoder.trunk.parameters()).fill_(float("nan"))
    with pytest.raises(FloatingPointError, match="token 0 of the text: features are NaN"):
        write_collection(broken, tmp_path / "c", ["features", "targets"])


@pytest.mark.parametrize(
    ("arch", "what", "message"),
    [
        ("awd_lstm_lm_mos", ["logits"], "--what logits: mos mixes"),
        ("awd_lstm_lm_softmax", ["logit"], "--what logit: expected some of log_probs,logits"),
    ],
)
def test_quantities_that_a_layer_lacks_are_refused(arch, what, message, stream_data, tmp_path):
    path = write_checkpoint(tmp_path / "a.pt", build(stream_data, arch=arch))
    with pytest.raises(ValueError, match=message):
        write_collection(collector((path, str(stream_data))), tmp_path / "c", what)
    assert [file.name for file in tmp_path.iterdir()] == ["a.pt"]
