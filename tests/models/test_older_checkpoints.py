"""A checkpoint that is older than an option has its default."""

import pytest
from omegaconf import OmegaConf

from tests.models.small import build
from tests.trainings import same

NEW = ("head_z_loss", "head_loss_filter", "head_monitor", "head_loss", "rel_pos_clip", "rel_pos_in")


@pytest.mark.parametrize(
    ("arch", "data"),
    [
        ("transformer_mixtape", "mt_data"),
        ("transformer_lm_gss", "lm_data"),
        ("lstm_mos", "mt_data"),
        ("awd_lstm_lm_mos", "lm_data"),
    ],
)
def test_options_that_a_checkpoint_lacks_have_their_defaults(arch, data, request):
    built = build(request.getfixturevalue(data), arch)
    stored = OmegaConf.to_container(built.cfg.model, resolve=True, enum_to_str=True)
    older = OmegaConf.create({name: v for name, v in stored.items() if name not in NEW})
    model = built.task.build_model(older)
    assert older.head_monitor == 0 and older.head_loss == "auto"
    model.load_state_dict(built.model.state_dict())
    assert same(model.state_dict(), built.model.state_dict())
