"""--head-monitor: what it shows, and that a training run does not notice it."""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from highrank_plugins.heads import build_head
from highrank_plugins.models.head_monitor import CollapseWatch, HeadMonitor
from tests.fairseq_cli import run
from tests.free_port import free_address
from tests.trainings import NARROW, OUR_LOSS, TRANSLATION, last, parameters, same, train

EVERY_THIRD = ["--head-monitor", 3, "--log-interval", 1, "--disable-validation"]
COMPONENTS = {"head_component_entropy", "head_component_entropy_overall", "head_component_least"}
ALL = {"head_spectral_entropy", "head_effective_rank", "head_gradient_retention"}
GATES = {
    f"head_gate_{what}_{who}" for what in ("entropy", "largest") for who in ("frequent", "rare")
}
SLOPES = {f"head_slope_{name}" for name in ("mean", "sd", "smallest", "largest")}
SHOWN = {
    "transformer_mos_tiny": ALL | COMPONENTS,
    "transformer_mixtape_tiny": ALL | COMPONENTS | GATES,
    "transformer_lm_plif": ALL | SLOPES,
    "awd_lstm_lm_moc": ALL | COMPONENTS,
    "lstm_mos": ALL | COMPONENTS,
}
OPTIONS = {"transformer_lm_plif": ["--head-plif-knots", 500]}


def events(folder) -> EventAccumulator:
    found = EventAccumulator(str(folder), size_guidance={"scalars": 0, "histograms": 0})
    return found.Reload()


@pytest.mark.parametrize("arch", SHOWN)
def test_every_model_logs_the_measures_of_its_head(arch, mt_data, lm_data, tmp_path):
    data = lm_data if "_lm_" in arch else mt_data
    common = [*OPTIONS.get(arch, []), "--update-freq", 2, "--disable-validation"]
    train(data, tmp_path / "alone", arch, 7, *common)
    shown = [*common, *EVERY_THIRD, "--tensorboard-logdir", logdir := tmp_path / "events"]
    done = train(data, tmp_path / "seen", arch, 7, *shown)
    assert same(parameters(last(tmp_path / "seen")), parameters(last(tmp_path / "alone")))
    found = events(logdir / "head")
    scalars = {tag for tag in found.Tags()["scalars"] if "/" not in tag}
    assert scalars == SHOWN[arch]
    for tag in found.Tags()["scalars"]:
        assert [event.step for event in found.Scalars(tag)] == [3, 6]
    shares = [tag for tag in found.Tags()["scalars"] if tag.startswith("head_component_use/")]
    assert bool(shares) == (SHOWN[arch] >= COMPONENTS)
    if shares:
        values = (found.Scalars(tag)[0].value for tag in shares)
        assert sum(values) == pytest.approx(1, abs=1e-6)
    histograms = {"head_singular_values"} | ({"head_slopes"} if "plif" in arch else set())
    assert set(found.Tags()["histograms"]) == histograms
    lines = [line for line in done.output.splitlines() if " | INFO | train_inner | " in line]
    assert len(lines) == 7 and [line.count("head_") for line in lines[:2]] == [0, 0]
    newest = found.Scalars("head_effective_rank")[-1].value
    shown = re.search(r"head_effective_rank=([\d.]+)", lines[-1])
    assert float(shown[1]) == pytest.approx(newest, abs=0.01)
    assert "train_head_effective_rank" not in done.output
    assert "| head_effective_rank " in done.output


def test_a_resumed_run_continues_its_curves(mt_data, tmp_path):
    options = [*EVERY_THIRD, "--tensorboard-logdir", tmp_path / "events"]
    for updates in (4, 7):
        train(mt_data, tmp_path, "transformer_softmax_tiny", updates, *options)
    found = events(tmp_path / "events" / "head")
    assert [event.step for event in found.Scalars("head_effective_rank")] == [3, 6]


@pytest.mark.long
def test_only_the_first_of_two_processes_writes(mt_data, tmp_path):
    address, arch = free_address(), "transformer_mos_tiny"
    where = ["--arch", arch, "--max-update", 4, *TRANSLATION, *NARROW, *OUR_LOSS, "--dropout", 0]
    group = [
        *("--distributed-world-size", 2, "--device-id", 0, "--ddp-backend", "legacy_ddp"),
        *("--distributed-init-method", address, "--distributed-no-spawn"),
        *("--distributed-backend", "gloo", "--distributed-rank"),
    ]
    more = ["--save-dir", tmp_path, "--tensorboard-logdir", tmp_path / "events", *EVERY_THIRD]
    with ThreadPoolExecutor() as pool:
        ranks = [pool.submit(run, "train", mt_data, *where, *group, r, *more) for r in (0, 1)]
    assert "training on 2 devices" in ranks[0].result().output
    (file,) = (tmp_path / "events" / "head").iterdir()
    assert [event.step for event in events(file).Scalars("head_effective_rank")] == [3]
    train(mt_data, tmp_path / "one", arch, 4, "--update-freq", 2, "--dropout", 0)
    assert same(parameters(last(tmp_path)), parameters(last(tmp_path / "one")))


def test_a_criterion_that_hides_its_batches_gives_a_warning(mt_data, tmp_path):
    stock = ["--criterion", "label_smoothed_cross_entropy"]
    done = train(mt_data, tmp_path, "transformer_mos_tiny", 6, *EVERY_THIRD, *stock)
    assert done.output.count("sees neither features nor targets") == 1
    assert "head_effective_rank" in done.output and "head_component_" not in done.output


def monitored(head, features, updates):
    """Yield updates of a training run whose every batch is the same."""
    monitor = HeadMonitor(head, 1)
    target = torch.zeros(features.shape[:-1], dtype=torch.long)
    for update in range(updates):
        monitor.before_update(update)
        monitor.see(features, target, None)
        monitor.after_update(update + 1, None)
    return monitor


def test_a_collapse_gives_a_warning(caplog):
    head = build_head("mos", num_classes=11, feature_dim=4, components=3)
    with torch.no_grad():
        head.prior.weight.copy_(torch.tensor([[9.0], [9.0], [0.0]]).expand(3, 4))
    monitored(head, torch.ones(2, 5, 4), 12)
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "at update 10 components 2 of 3 (from 0) have collapsed" in warning
    assert "1% of an equal share. Use fewer (--head-components)" in warning


def test_numbers_that_are_not_finite_do_not_end_the_run(caplog):
    head = build_head("softmax", num_classes=11, feature_dim=4)
    monitor = monitored(head, torch.full((2, 5, 4), float("inf")), 1)
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning == "--head-monitor: could not measure this update: a feature is not finite"
    assert monitor.latest == {}


def test_an_update_that_fails_is_not_shown():
    head, features = build_head("softmax", num_classes=11, feature_dim=4), torch.randn(2, 5, 4)
    monitor, target = HeadMonitor(head, 3), torch.zeros(2, 5, dtype=torch.long)
    monitor.before_update(2)
    monitor.see(features, target, None)
    monitor.after_update(2, None)  # fp16: the gradients overflowed
    assert monitor.latest == {}
    monitor.before_update(2)
    monitor.see(2 * features, target, None)
    monitor.after_update(3, None)
    assert monitor.latest == monitored(head, 2 * features, 1).latest


def test_only_the_first_batch_of_an_update_is_measured():
    head = build_head("softmax", num_classes=11, feature_dim=4)
    one = monitored(head, torch.ones(2, 5, 4), 1)
    monitor, target = HeadMonitor(head, 1), torch.zeros(2, 5, dtype=torch.long)
    monitor.before_update(0)
    for features in (torch.ones(2, 5, 4), torch.randn(2, 5, 4)):
        monitor.see(features, target, None)
    monitor.after_update(1, None)
    assert monitor.latest == one.latest


HEALTHY = torch.tensor([0.5, 0.3, 0.2])
DYING = torch.tensor([0.6, 0.399, 0.001])  # the last one has .3 % of an equal share


@pytest.mark.parametrize(
    ("window", "uses", "reported"),
    [
        (3, [DYING] * 5, [[], [], [2], [], []]),  # once, when the window is full
        (2, [HEALTHY, DYING, DYING, DYING], [[], [], [2], []]),  # the mean of the window counts
        (1, [torch.tensor([1 - x, x]) for x in (0.00501, 0.00499)], [[], [1]]),  # 1 % of 1/K
        (1, [DYING, HEALTHY, DYING], [[2], [], [2]]),  # again after recovery
        (1, [DYING, torch.tensor([0.999, 0.0005, 0.0005])], [[2], [1]]),  # each by itself
    ],
)
def test_a_component_is_reported_once_it_has_collapsed(window, uses, reported):
    watch = CollapseWatch(window)
    assert [watch.see(use) for use in uses] == reported
