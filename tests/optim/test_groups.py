"""Every parameter has one role, and stands in one group of Muon or AdamW."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from highrank_plugins.common.user_error import UserError
from highrank_plugins.heads import build_head
from highrank_plugins.optim import groups, parameter_roles
from tests.heads.cases import CASES

RATES = {"vocabulary": 3e-3, "hidden": 2e-2, "components": 3e-3, "vector": 3e-3}
WORDS, SIZE = 67, 16


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, SIZE)
        self.trunk = nn.Sequential(nn.Linear(SIZE, SIZE), nn.Tanh(), nn.LayerNorm(SIZE))
        self.head = build_head(
            "mixtape", num_classes=WORDS, feature_dim=SIZE, weight=self.embed.weight, frequent=21
        )


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_parameter_of_a_layer_has_a_role(case):
    head = case.build()
    roles = head.parameter_roles()
    of_name = {"weight": "vocabulary", "bias": "vector", "prior.weight": "components",
               "gate_shared.weight": "components", "gate_embed": "vocabulary",
               "gate_bias": "vocabulary", "latent.weight": "hidden",
               "gate_hidden.weight": "hidden"}  # fmt: skip
    for name, parameter in head.named_parameters():
        by_dimension = "scalar" if parameter.numel() == 1 else "vector"
        assert roles.pop(name) == of_name.get(name, by_dimension)
    assert not roles


class Halves(nn.Module):
    """A function of a user's, of two tensors."""

    def forward(self, tall, wide):
        return tall @ wide

    def right_inverse(self, weight):
        return weight[:, :3].clone(), weight[:3].clone()


@pytest.mark.parametrize(
    ("vocabulary", "hidden"), [("tiers", [2, 4]), ("codebook", []), ("low_rank", [1]), (None, [1])]
)
def test_rows_of_words_are_no_hidden_matrix(vocabulary, hidden):
    """Name the factors by what they are, not by their shape: 10 frequent words have 64 numbers."""
    options = {"vocabulary": vocabulary} if vocabulary else {}
    head = build_head("softmax", num_classes=100, feature_dim=64, **options)
    if not vocabulary:
        parametrize.register_parametrization(head, "weight", Halves(), unsafe=True)
    roles = head.parameter_roles()
    names = [n for n, role in roles.items() if role == "hidden"]
    assert names == [f"parametrizations.weight.original{i}" for i in hidden]
    assert (
        roles[f"parametrizations.weight.original{'' if vocabulary == 'codebook' else 0}"]
        == "vocabulary"
    )


def test_all_parameters_have_one_group_that_torchs_optimizers_take():
    model = Model()
    muon, adam = groups(model, RATES)
    grouped = [p for g in (*muon, *adam) for p in g["params"]]
    assert sorted(map(id, grouped)) == sorted(map(id, model.parameters()))
    assert {g["role"]: (g["lr"], g["weight_decay"]) for g in (*muon, *adam)} == {
        role: (rate, 0.01 * (role != "vector")) for role, rate in RATES.items()
    }
    assert {id(p) for g in muon for p in g["params"]} == {
        id(model.trunk[0].weight), id(model.head.latent.weight), id(model.head.gate_hidden.weight)
    }  # fmt: skip
    for optimizer in (torch.optim.Muon(muon), torch.optim.AdamW(adam)):
        for parameter in grouped:
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    model.head.latent.requires_grad_(False)  # which stands in no group
    assert (
        sum(len(g["params"]) for found in groups(model, RATES) for g in found) == len(grouped) - 2
    )


def test_roles_without_a_rate_and_rates_without_a_role_are_refused():
    assert parameter_roles(Model())["embed.weight"] == "vocabulary"
    few = {role: rate for role, rate in RATES.items() if role != "components"}
    with pytest.raises(UserError, match=r"none for 'components', the role of head.gate_shared"):
        groups(Model(), few)
    with pytest.raises(UserError, match="no parameter has the role 'scalar'; this model has comp"):
        groups(Model(), RATES | {"scalar": 1.0})
    with pytest.raises(ValueError, match="rates: hidden"):
        groups(Model(), RATES | {"hidden": -1.0})
    with pytest.raises(ValueError, match="weight_decay"):
        groups(Model(), RATES, weight_decay=float("nan"))
