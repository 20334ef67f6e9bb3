"""A checkpoint of more layers starts a training run of fewer, whose checkpoints can be used."""

import pytest

from tests.fairseq_cli import run
from tests.trainings import last, parameters, train

DEEP = ["--encoder-layers", 3, "--decoder-layers", 3]
TRUNKS = {
    "transformer_mos_tiny": ("mt_data", ["--encoder-layers-to-keep", "2"]),
    "transformer_highrank": ("mt_data", ["--encoder-layers-to-keep", "0,1"]),
    "transformer_lm_mixtape": ("lm_data", []),
}


@pytest.mark.parametrize("arch", TRUNKS)
def test_kept_layers_are_trained_and_loaded_again(arch, request, tmp_path):
    data, encoder = TRUNKS[arch]
    data = request.getfixturevalue(data)
    deep = DEEP if encoder else DEEP[2:]
    relative = ["--rel-pos-clip", 3]
    train(data, tmp_path / "deep", arch, 1, *deep, *relative)
    keep = [*encoder, "--decoder-layers-to-keep", "0,2", "--lr", 0]
    start = ["--finetune-from-model", last(tmp_path / "deep")]
    train(data, tmp_path / "kept", arch, 1, *deep, *relative, *keep, *start)

    old, new = parameters(last(tmp_path / "deep")), parameters(last(tmp_path / "kept"))
    layers = {name.split(".")[2] for name in new if name.startswith("decoder.layers.")}
    assert layers == {"0", "1"}
    for name in ("self_attn.relative.key_table", "fc1.weight"):
        assert (new[f"decoder.layers.1.{name}"] == old[f"decoder.layers.2.{name}"]).all()
    tool = ["generate"] if encoder else ["eval-lm", "--tokens-per-sample", 32]
    where = [data, "--path", last(tmp_path / "kept"), "--num-workers", 0]
    run(*tool, *where)
