"""A toy recipe of three stages, for tests of what all recipes share."""

import subprocess
from pathlib import Path

LIBRARY = Path(__file__).parents[2] / "recipes" / "lib" / "recipe.sh"
TOY = f"""\
#!/usr/bin/env bash
# A toy.

source "{LIBRARY}"

stage=0        # first stage
stop_stage=2   # last stage
name=here      # a word
value=1        # any
set=()         # several
parse_options "$@"

first() {{ echo "first $value" | tee "$out/file"; [[ $value != bad ]]; echo end; }}
second() {{
    cat -- "$run_dir/first/file" >>"$out/file"
    if [[ ${{hold-}} ]]; then touch "$run_dir/holding"; sleep 60; fi
}}
third() {{ cp -- "$run_dir/second/file" "$out/file"; }}
first_dir=$PWD/run/$name notes=$PWD/notes.log
touch -a "$notes"
open_run "$first_dir"
run_stage 0 first "write" first "$value"
run_resumable_stage 1 second "append" second "fixed" "$run_dir/first"
run_stage 2 third "copy" third "" "$run_dir/second/file" "$notes"
echo "set: ${{set[*]-}}"
echo "turns: ${{GOMP_SPINCOUNT-}}" >&2
"""


def done_stages(result: subprocess.CompletedProcess[str]) -> list[int]:
    return [n for n in range(3) if f" stage {n} " in result.stderr and ran(result, n)]


def ran(result, number: int) -> bool:
    return any(f"stage {number} " in row and "done in" in row for row in result.stderr.splitlines())
