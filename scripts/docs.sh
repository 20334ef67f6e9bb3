#!/usr/bin/env bash
# Builds the documentation as a web site; a warning is an error.
set -euo pipefail

usage() {
    cat <<'TEXT'
usage: bash scripts/docs.sh [--output DIR]

Builds the documentation site from docs/; any warning is an error. Installs what is missing:
.venv by scripts/setup.sh, and the packages of requirements/docs.txt. The build needs no network.

  --output DIR   where to write the site (default: build/docs)
TEXT
}

output=build/docs
case "${1-}" in
    "") ;;
    --output) output="${2:?docs: --output needs a directory}" ;;
    -h | --help) usage && exit 0 ;;
    *) echo "docs: unknown option '$1'; known are --output, --help" >&2 && exit 2 ;;
esac

output="$(realpath -m -- "$output")"
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
python="$PWD/.venv/bin/python"
if ! "$python" -c 'import furo, myst_nb, sphinx' 2>/dev/null; then
    bash scripts/setup.sh
    echo "== installing requirements/docs.txt"
    "$python" -m pip install --disable-pip-version-check --quiet --no-deps \
        --requirement requirements/docs.txt
fi
# pages compute: threads that wait must leave the cores to other programs (recipes/lib/recipe.sh)
[[ ${OMP_WAIT_POLICY-} ]] || export GOMP_SPINCOUNT="${GOMP_SPINCOUNT-1000}"
echo "== building the pages, about a minute and a half"
"$python" -m sphinx --quiet --fail-on-warning --keep-going --builder html \
    --doctree-dir "$output.doctrees" docs "$output"
echo "$output/index.html"
