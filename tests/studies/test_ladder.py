"""Test ladders: their members, refusals, projections, and the published case that they replay."""

import json
import re
import signal
import subprocess
from itertools import product
from math import exp, log
from pathlib import Path
from statistics import mean

import pytest
import yaml

from highrank_plugins.common.blocks import ConfigurationError
from highrank_plugins.studies.ladder import read_ladder
from highrank_plugins.studies.ladder_table import OTHER_SIZES
from highrank_plugins.studies.rates import NOT_TUNED
from highrank_plugins.studies.table import LATE
from tests.cli import highrank
from tests.studies.stub import HIGHRANK, folder_of, starts, table_of, write_stub

SCORED = {"test_perplexity": "ppl|unit:word|ctx:stream|text:test-1|n:9|mass:1+1e-7|v:0.1.0"}
ARMS = {"softmax": {"conf": "softmax"}, "mos": {"conf": "mos"}}
SIZES = {
    name: {"seeds": [1, 2], "set": {"lr": exponent}, "compute": float(10**exponent)}
    for name, exponent in (("small", 4), ("middle", 5), ("large", 6))
}
LARGE = SIZES["large"]
HUGE = {"seeds": [1, 2], "set": {"lr": 7}, "compute": 1e7}
WIDTH = "decoder_embed_dim"


def write(folder: Path, **changes: object) -> Path:
    tree = {"recipe": "stub", "baseline": "softmax", "arms": ARMS, "sizes": SIZES, **changes}
    file = folder / "ladder.yaml"
    file.write_text(yaml.safe_dump(json.loads(json.dumps(tree)), sort_keys=False))
    return file


def ladder(file: Path, *words: object):
    arguments = ["ladder", file, "--exp-dir", file.parent / "exp", *words]
    return highrank(*arguments)


def copied(file: Path) -> Path:
    """Return a folder with the records of a ladder."""
    records = file.parent / "records"
    records.mkdir()
    for link in folder_of(file).glob("*-[12]"):
        (records / f"{link.name}.json").write_text((link / "results.json").read_text())
    return records


def change(path: Path, block: str = "", **changes: object) -> None:
    """Change a record, or a block of it."""
    record = json.loads(path.read_text())
    of = record
    for name in block.split(".") if block else ():
        of = of[name]
    of |= changes
    path.write_text(json.dumps(record))


@pytest.fixture
def folder(tmp_path):
    write_stub(tmp_path)
    return tmp_path


def test_arms_and_sizes_become_members_whose_rates_follow_the_rule(folder):
    arms = {"softmax": {"conf": "softmax"}, "mos": {"conf": "mos", "set": {"lr": 3}}}
    widths = {"small": (4, 2), "middle": (5, 2), "large": (16, 3)}
    sizes = {n: {"seeds": s, "set": {WIDTH: d}} for n, (d, s) in widths.items()}
    rates = {"rules": {"lr": -0.5}, "width": WIDTH, "set": {"lr": 1}}
    study = read_ladder(write(folder, arms=arms, sizes=sizes, **rates)).study
    members = {member.name: member.changes for member in study.members}
    assert len(members) == 2 * (2 + 2 + 3) and next(iter(members)) == "softmax_small-1"
    assert members["softmax_middle-2"] == {"lr": 0.8944, WIDTH: 5}
    assert members["mos_large-3"] == {"lr": 1.5, WIDTH: 16}


@pytest.mark.parametrize(
    ("changes", "place", "why"),
    [
        ({"sizes": dict(list(SIZES.items())[:2])}, "sizes", "2 sizes, and any two fit a line"),
        ({"target": 33.0}, "target", "33 times the largest size: choose above 1 and up to 10"),
        ({"target": 1}, "target", "1 times the largest size"),
        ({"baseline": "sofmax"}, "baseline", "no system is named sofmax; did you mean 'softmax'"),
        ({"seeds": 3}, "seeds", "unknown key"),
        ({"sizes": SIZES | {"large": {"seeds": 10**9}}}, "    seeds: 1000", "seeds, and a"),
        ({"sizes": dict(reversed(SIZES.items()))}, "  small",
         "compute of the sizes is 1000000.0, 100000.0, 10000.0: expected numbers above 0"),
        ({"sizes": {n: of | {"compute": 1e9} for n, of in SIZES.items()}}, "  large",
         "no two alike"),
        ({"sizes": SIZES | {"large": {"seeds": 2, "set": {"lr": 6}}}}, "sizes",
         "sizes: some have a compute; give it in each, or in none"),
        ({"width": "lr"}, "width", "width: serves rules alone; give rules"),
        ({"arms": ARMS | {"softmax_a": {"conf": "mos"}, "a": {"conf": "mos"}},
          "sizes": {"b": SIZES["small"], "a_b": SIZES["middle"], "c": LARGE}}, "arms",
         "two members are named softmax_a_b"),
        ({"metric": "magic"}, "metric", "nobody knows if more of magic is better"),
        ({"rules": {"lr": 1.0}}, "  lr", "rules.lr: give lr in `set` of the file"),
        ({"arms": {"softmax": {"conf": "softmax"}}}, "arms", "at least 2"),
        ({"sizes": SIZES | {"large": {"seeds": 1}}}, "    seeds: 1", "two seeds or more, .* got 1"),
        ({"sizes": SIZES | {"small": {"seeds": [7, 7]}}}, "    seeds:",
         r"^[^\n]*sizes.small.seeds: \[7, 7\]: a seed is listed twice$"),
        ({"sizes": {n: {"seeds": 2, "set": {"lr": 1}} for n in SIZES},
          "arms": ARMS | {"mos": {"conf": "mos", "set": {"lr": 3}}}}, "  mos",
         "arms.mos: sets lr, which sizes.small sets for every arm; remove one"),
    ],
)  # fmt: skip
def test_a_file_is_refused_with_its_line(folder, changes, place, why):
    file = write(folder, **changes)
    done = ladder(file, "--dry-run")
    number = next(n for n, x in enumerate(file.read_text().splitlines(), 1) if x.startswith(place))
    assert done.exit_code == 2 and f"ladder.yaml:{number}: " in done.output, done.output
    with pytest.raises(ConfigurationError, match=why):
        read_ladder(file)
    assert not (folder / "exp").exists()


@pytest.mark.parametrize(
    ("width", "power", "why"),
    [
        (0, 1.0, "decoder_embed_dim of the sizes is 0, 5, 6: expected numbers above 0"),
        ("abc", 1.0, "decoder_embed_dim of the sizes is abc, 5, 6: expected numbers"),
        (4, 1e6, "rules.lr: no finite multiple at middle"),
        (4, -1e4, "rules.lr: no finite multiple at middle"),
    ],
)
def test_rules_need_numbers(folder, width, power, why):
    sizes = {n: {"seeds": 2, "set": {WIDTH: w}} for n, w in zip(SIZES, (width, 5, 6), strict=True)}
    changes = {"sizes": sizes, "width": WIDTH, "rules": {"lr": power}, "set": {"lr": 1}}
    with pytest.raises(ConfigurationError, match=why):
        read_ladder(write(folder, **changes))


def test_sizes_that_come_after_a_look_are_not_projected(folder):
    file = write(folder)
    assert "projected |" in ladder(file).output
    more, redrawn = SIZES | {"huge": HUGE}, SIZES | {"large": LARGE | {"set": {"lr": 6.1}}}
    for sizes in (more, redrawn):
        said = ladder(write(folder, sizes=sizes)).output
        assert f"Not projected, since {OTHER_SIZES}: softmax, mos." in said
        assert "projected |" not in said and "**" not in said
    afresh = {"sizes": more, "set": {"max_epoch": 7}}  # another ladder
    assert "projected |" in ladder(write(folder, **afresh)).output


def test_a_baseline_that_diverged_leaves_a_table(folder):
    file = write(folder, options={"failing": "softmax-2"})
    done = ladder(file)
    assert done.exit_code == 1 and "softmax has no two runs, so nothing is projected" in done.output
    assert (folder_of(file) / "table.md").exists()


def test_an_arm_whose_name_begins_like_the_baseline_s_is_another(folder):
    arms = ARMS | {"softmax_cap": {"conf": "mixtape"}}
    sizes = {name: of | {"compute": f"1e{n}"} for n, (name, of) in enumerate(SIZES.items(), 4)}
    done = ladder(write(folder, arms=arms, sizes=sizes), "--dry-run")
    assert done.exit_code == 0 and "softmax_cap_small-1" in done.output, done.output


def test_arms_that_read_other_tokens_are_refused(folder):
    arms = ARMS | {"mos": {"conf": "mos", "set": {"max_epoch": 40}}}
    done = ladder(write(folder, arms=arms))
    assert done.exit_code == 2 and not starts(folder / "ladder.yaml")
    assert "arms.mos: max_epoch is 40 at small, and 36 of softmax" in done.output
    assert "ladder.yaml:6: " in done.output and len(done.output.splitlines()) == 1


def test_a_ladder_that_was_killed_has_the_same_table(folder):
    file = write(folder)
    whole = folder / "whole"
    whole.mkdir()
    write_stub(whole)
    assert ladder(write(whole)).exit_code == 0
    command = [*HIGHRANK, "ladder", str(file), "--exp-dir", str(folder / "exp"), "--jobs", "1"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        if "mos_small-2: started" in line:
            process.send_signal(signal.SIGTERM)
    assert process.wait() != 0 and 0 < len(starts(file)) < 12
    partly = ladder(file, "--table")
    assert "Not projected, since runs are missing: mos, softmax." in partly.output
    assert "projected |" not in partly.output and "softmax_large-2: not run." in partly.output
    assert ladder(file).exit_code == 0 and len(starts(file)) == 12
    assert table_of(file) == table_of(whole / "ladder.yaml")
    assert (folder_of(file) / "ladder.svg").is_file()


def test_rates_are_tried_at_the_smallest_size_and_hold_for_all_sizes_of_an_arm(folder):
    sizes = {name: {**of, "set": {"max_epoch": of["set"]["lr"]}} for name, of in SIZES.items()}
    file = write(folder, rates=[0.3, 1, 3], sizes=sizes)
    assert ladder(file).exit_code == 0
    logs = {path.stem for path in (folder_of(file) / "logs").glob("*rate*")}
    assert logs == {f"{arm}_small_rate{rate}-1" for arm in ARMS for rate in ("0.3", "1", "3")}
    for link in folder_of(file).glob("*-[12]"):
        record = json.loads((link / "results.json").read_text())
        best = 0.3 if link.name.startswith("softmax") else 1  # as the stub has it
        assert record["config"]["train"]["lr"] == best
    table = table_of(file).decode()
    assert "times lr, with the sensitivity" in table and "softmax 0.3 (" in table


def test_a_projection_is_of_logarithms_and_of_all_records(folder):
    file = write(folder)
    done = ladder(file)
    assert done.exit_code == 0, done.output
    runs = {arm: [] for arm in ARMS}
    for arm, size, seed in product(ARMS, SIZES, (1, 2)):
        found = json.loads((folder_of(file) / f"{arm}_{size}-{seed}" / "results.json").read_text())
        runs[arm].append(log(found["metrics"]["test_perplexity"]))
    gain = mean(runs["mos"]) - mean(runs["softmax"])  # the stub has one gain at each size
    assert f"| projected | 1e7 | – | – | **{gain:+.4f} [" in done.output
    level = exp(mean(runs["softmax"]))
    assert f"| small | 10,000 | 2/2 | {level:.2f} | **{gain:+.4f} [" in done.output
    assert "mos helps at small, middle, large; at 1e7 between " in done.output

    records = copied(file)
    again = ladder(file, "--records", records, "--plot", folder / "a.svg")
    said = done.output[done.output.index("| size") :].replace(f"{NOT_TUNED}\n", "")
    assert again.output == said  # records do not tell which rates were tried
    assert (folder / "a.svg").read_text().count("<path") > 4
    change(records / "mos_large-2.json", "train", updates=9)
    other = ladder(file, "--records", records).output
    assert "mos has read other tokens than softmax (large)." in other and "projected" not in other
    assert ladder(file, "--records", folder).exit_code == 2
    seven = json.loads((records / "mos_large-1.json").read_text()) | {"seeds": [7]}
    (records / "mos_large-7.json").write_text(json.dumps(seven))
    said = ladder(file, "--records", records).output
    assert "Left out, since the file does not list them: mos_large-7." in said
    (records / "mos_large-2.json").unlink()
    other = ladder(file, "--records", records).output
    assert "Not projected, since runs are missing: mos." in other and "projected |" not in other
    for words in (["--records", folder / "none"], ["--records", records, "--jobs", "1"]):
        refused = ladder(file, *words)
        assert refused.exit_code == 2 and refused.output.startswith("highrank: --")
    assert "Changed since" not in ladder(file).output
    write(folder, target=3, metric="valid_perplexity")
    said = "a test here is a further one: metric (was test_perplexity), target (was 10)."
    assert said in ladder(file).output
    write(folder, sizes={n: of | {"compute": 2 * of["compute"]} for n, of in SIZES.items()})
    before = {name: of["compute"] for name, of in SIZES.items()}
    assert f"a further one: computes (was {before})." in ladder(file).output
    text = write(folder).read_text()
    file.write_text(text.replace("seeds:\n    - 1\n    - 2", "seeds:\n    - 1\n    - 3"))
    assert file.read_text() != text
    said = ladder(file).output
    assert f"Not projected, since {LATE}: softmax, mos." in said and "projected |" not in said
    assert "[" not in said[said.index("| size") :].partition("\n\n")[0]  # no interval


def test_records_of_other_options_than_the_file_are_refused(folder):
    file = write(folder, rates=[0.3, 1, 3])
    assert ladder(file).exit_code == 0
    records = copied(file)
    assert ladder(file, "--records", records).exit_code == 0
    path = records / "mos_large-2.json"
    whole = path.read_text()
    for name, value, why in (
        ("lr", 18, "lr is 18, and {} gives 6, with one multiple for mos"),  # 3 times 6
        ("lr", 7, "lr is 7, and {} gives 6, with one multiple for mos"),
        ("arch", "awd_lstm_lm_moc", "arch is awd_lstm_lm_moc, and {} gives awd_lstm_lm_mos"),
        ("dropout", 0.5, "dropout is 0.5, and {} gives None"),
        ("max_epoch", 40, "max_epoch is 40, and {} gives 36"),
    ):
        change(path, "config.train", **{name: value})
        refused = ladder(file, "--records", records)
        assert refused.exit_code == 2 and refused.output.count("\n") == 1
        assert f"{path}: train.{why.format(file)}" in refused.output
        path.write_text(whole)
    change(path, config={})
    said = ladder(file, "--records", records).output
    assert "mos_large-2.json: does not state its options" in said
    path.write_text(whole)
    for path in records.glob("*.json"):
        change(path, data="b" if "_large" in path.name else "a", certificates=SCORED)
    said = ladder(file, "--records", records).output
    assert "Texts or their preparation differ: small, middle; large." in said
    assert re.search("difference.* named above may be the cause of a difference.", said)
    for path in records.glob("*_large-*.json"):
        change(path, signatures={"test_perplexity": "b"}, signature="b")
    refused = ladder(file, "--records", records)
    assert refused.exit_code == 2 and "has the signature b, but" in refused.output


def test_a_size_that_waits_or_a_new_configuration_is_no_change(folder):
    file = write(folder)
    ladder(file, "--only", "softmax_small-1")
    assert "Changed since" not in ladder(file, "--table").output
    assert "Changed since" not in ladder(file).output
    write(folder, set={"max_epoch": 40}, metric="valid_perplexity")
    assert "Changed since" not in ladder(file).output  # another ladder
    write(folder, metric="valid_perplexity")
    assert "metric (was test_perplexity)." in ladder(file).output


def test_the_compute_of_a_run_is_six_times_parameters_and_tokens(folder):
    sizes = {n: {k: v for k, v in of.items() if k != "compute"} for n, of in SIZES.items()}
    file = write(folder, sizes=sizes)
    done = ladder(file)
    assert done.exit_code == 2 and "small: its records do not tell the compute" in done.output
    records = [*folder.glob("exp/stub/members/*/results.json")]
    for widths in ({4: 1, 5: 1, 6: 1}, {4: 1, 5: 4, 6: 16}):
        for path in records:
            change(path, "config.train", bptt=20, batch_size=5, update_freq=2)
            lr = json.loads(path.read_text())["config"]["train"]["lr"]
            change(path, "train", parameters=1000 * widths[lr])
        done = ladder(file)
        assert ("no two alike" in done.output) == (widths[6] == 1), done.output
    assert "| small | 1.2e7 |" in done.output and "| large | 1.9e8 |" in done.output
