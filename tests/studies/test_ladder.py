"""Test ladders: their members, refusals, projections, and the published case that they replay."""

import json
import re
from itertools import product
from math import exp, log
from pathlib import Path
from statistics import mean

import pytest

from highrank_plugins.studies.ladder import read_ladder
from highrank_plugins.studies.table import LATE
from tests.cli import highrank
from tests.studies.stub import folder_of, starts, table_of, write_stub, write_study

SCORED = {"test_perplexity": "ppl|unit:word|ctx:stream|text:test-1|n:9|mass:1+1e-7|v:0.1.0"}
ARMS = {"softmax": {"conf": "softmax"}, "mos": {"conf": "mos"}}
SIZES = {
    name: {"seeds": 2, "set": {"lr": exponent}, "compute": float(10**exponent)}
    for name, exponent in (("small", 4), ("middle", 5), ("large", 6))
}
LARGE = SIZES["large"]
HUGE = {"seeds": 2, "set": {"lr": 7}, "compute": 1e7}
WIDTH = "decoder_embed_dim"


def write(folder: Path, **changes: object) -> Path:
    return write_study(
        folder, {"baseline": "softmax", "arms": ARMS, "sizes": SIZES, **changes}, "ladder"
    )


def ladder(file: Path, *words: object):
    return highrank("ladder", file, "--exp-dir", file.parent / "exp", *words)


def widths(*found: object) -> dict[str, object]:
    sizes = {name: {"seeds": 2, "set": {WIDTH: w}} for name, w in zip(SIZES, found, strict=True)}
    return {"sizes": sizes, "width": WIDTH, "set": {"lr": 1}}


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
    arms = {"softmax": {"conf": "softmax"}, "softmax_cap": {"conf": "mos", "set": {"lr": 3}}}
    changes = widths(4, 5, 16) | {"arms": arms, "rules": {"lr": -0.5}}
    for name, of in changes["sizes"].items():
        of |= {"compute": f"1e{4 + len(name)}"} | ({"seeds": 3} if name == "large" else {})
    changes["sizes"]["large"]["compute"] = "2e10"
    found = read_ladder(write(folder, **changes))
    members = {member.name: member.changes for member in found.study.members}
    assert len(members) == 2 * (2 + 2 + 3) and next(iter(members)) == "softmax_small-1"
    assert members["softmax_middle-2"] == {"lr": 0.8944, WIDTH: 5}
    assert members["softmax_cap_large-3"] == {"lr": 1.5, WIDTH: 16}
    assert found.systems["softmax_cap_small"] == "softmax_cap"  # begins like the baseline's name
    assert found.sizes["large"].compute == 2e10


@pytest.mark.parametrize(
    ("changes", "place", "why"),
    [
        ({"target": 33.0}, "target", r"target: must lie in \(1, 10\], got 33"),
        ({"sizes": dict(reversed(SIZES.items()))}, "  small",
         "compute of the sizes is 1000000.0, 100000.0, 10000.0: expected numbers above 0"),
        ({"sizes": {n: of | {"compute": 1e9} for n, of in SIZES.items()}}, "  large",
         "no two alike"),
        ({"sizes": SIZES | {"large": {"seeds": 2, "set": {"lr": 6}}}}, "sizes",
         "sizes: some have a compute; give it in each, or in none"),
        ({"arms": ARMS | {"softmax_a": {"conf": "mos"}, "a": {"conf": "mos"}},
          "sizes": {"b": SIZES["small"], "a_b": SIZES["middle"], "c": LARGE}}, "arms",
         "two members are named softmax_a_b"),
        ({"rules": {"lr": 1.0}}, "  lr", "rules.lr: give lr in `set` of the file"),
        ({"sizes": {n: {"seeds": 2, "set": {"lr": 1}} for n in SIZES},
          "arms": ARMS | {"mos": {"conf": "mos", "set": {"lr": 3}}}}, "  mos",
         "arms.mos: sets lr, which sizes.small sets for every arm; remove one"),
        ({"arms": ARMS | {"mos": {"conf": "mos", "set": {"max_epoch": 40}}}}, "  mos",
         "arms.mos: max_epoch is 40 at small, and 36 of softmax: arms read the same tokens"),
        (widths(4, 5, 6) | {"rules": {"lr": 1e6}}, "  lr: 10", "lr: no finite multiple at middle"),
    ],
)  # fmt: skip
def test_a_file_is_refused_with_its_line(folder, changes, place, why):
    file = write(folder, **changes)
    done = ladder(file, "--dry-run")
    number = next(n for n, x in enumerate(file.read_text().splitlines(), 1) if x.startswith(place))
    assert done.exit_code == 2 and done.output.count("\n") == 1, done.output
    assert re.search(f"ladder.yaml:{number}: .*{why}", done.output), done.output
    assert not (folder / "exp").exists()


def test_what_comes_after_a_look_is_not_projected(folder):
    file = write(folder)
    ladder(file, "--only", "softmax_small-1")
    said = ladder(file, "--table").output  # of sizes that wait
    assert "Not projected, since runs are missing: mos, softmax." in said
    assert "projected |" not in said and "softmax_large-2: not run." in said
    assert len(starts(file)) == 1
    said = ladder(file).output
    assert "projected |" in said
    assert (folder_of(file) / "ladder.svg").is_file() and len(starts(file)) == 12
    more, redrawn = SIZES | {"huge": HUGE}, SIZES | {"large": LARGE | {"set": {"lr": 6.1}}}
    for sizes in (more, redrawn):
        said = ladder(write(folder, sizes=sizes)).output
        assert f"Not projected, since {LATE}: softmax, mos." in said
        assert "projected |" not in said and "**" not in said
    afresh = {"sizes": more, "set": {"max_epoch": 7}, "metric": "valid_perplexity"}
    said = ladder(write(folder, **afresh)).output  # another ladder
    assert "projected |" in said
    said = ladder(write(folder, sizes={n: of | {"seeds": 3} for n, of in SIZES.items()})).output
    assert f"Not projected, since {LATE}: softmax, mos." in said and "projected |" not in said
    assert not (folder_of(file) / "ladder.svg").exists(), "nor is an earlier figure left"
    assert "[" not in said[said.index("| size") :].partition("\n\n")[0]  # no interval
    done = ladder(file := write(folder, options={"failing": "softmax-2"}))
    assert done.exit_code == 1 and "softmax has no two runs, so nothing is projected" in done.output
    assert (folder_of(file) / "table.md").exists()


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

    refused = ladder(file, "--plot", "a.svg")
    assert refused.exit_code == 2 and "--plot: runs have ladder.svg" in refused.output
    assert (folder_of(file) / "ladder.svg").read_text().count("<path") > 4
    paths = {link.name: link / "results.json" for link in folder_of(file).glob("*-[12]")}
    for name, path in paths.items():
        change(path, data="b" if "_large" in name else "a", certificates=SCORED)
    said = ladder(file, "--table").output
    assert "Texts or their preparation differ: small, middle; large." in said
    assert re.search("difference.* named above may be the cause of a difference.", said)
    change(paths["mos_large-2"], "train", updates=9)
    other = ladder(file, "--table").output
    assert "mos has read other tokens than softmax (large)." in other and "projected" not in other
    for name, path in paths.items():
        if "_large" in name:
            change(path, signatures={"test_perplexity": "b"})
    refused = ladder(file, "--table")
    assert refused.exit_code == 2 and "has the signature b, but" in refused.output


def test_the_compute_of_a_run_is_six_times_parameters_and_tokens(folder):
    sizes = {n: {k: v for k, v in of.items() if k != "compute"} for n, of in SIZES.items()}
    file = write(folder, sizes=sizes)
    done = ladder(file)
    assert done.exit_code == 2 and "small: its records do not tell the compute" in done.output
    records = [*folder.glob("exp/stub/members/*/results.json")]
    for widths in ({4: 1, 5: 1, 6: 1}, {4: 1, 5: 4, 6: 16}):
        for path in records:
            change(path, "config.train", bptt=20, batch_size=5, distributed_world_size=2)
            lr = json.loads(path.read_text())["config"]["train"]["lr"]
            change(path, "train", parameters=1000 * widths[lr])
        done = ladder(file)
        assert ("no two alike" in done.output) == (widths[6] == 1), done.output
    assert "| small | 1.2e7 |" in done.output and "| large | 1.9e8 |" in done.output
    assert "projected |" in done.output, "what was refused was no table"
    for path in records:
        change(path, "config.train", distributed_world_size=1, update_freq=4)
    assert "| small | 2.4e7 |" in ladder(file).output
