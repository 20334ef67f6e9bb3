"""A toy recipe of three stages, for tests of what all recipes share."""

import pytest

from tests.recipes.running import RECIPES, refused, run

LIBRARY = RECIPES / "lib" / "recipe.sh"
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


@pytest.fixture
def toy(tmp_path):
    """Return a function that runs it; it must end with exit code 0, or another that is given."""

    def toy(*words: str, code: int = 0, **environment: str):
        return run(["bash", "run.sh", *words], code, tmp_path, **environment)

    def refuse(message: str, *words: str, **environment: str) -> str:
        return refused(["bash", "run.sh", *words], message, folder=tmp_path, **environment)

    toy.refused, toy.run, toy.script = refuse, tmp_path / "run" / "here", tmp_path / "run.sh"
    toy.script.write_text(TOY)
    return toy
