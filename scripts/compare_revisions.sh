#!/usr/bin/env bash
# Compare the numbers that two revisions train, bit for bit.
set -euo pipefail

usage() {
    cat <<'TEXT'
usage: bash scripts/compare_revisions.sh [REVISION]

Trains every architecture token on every trunk for ten updates, with the package of REVISION
(default: HEAD~1) and with the working tree's, and compares the digests of parameters and
optimizer states. Prints what differs; exits 1 if anything does. Takes five minutes on two cores.
TEXT
}

case "${1-}" in
    -h | --help) usage && exit 0 ;;
    -*) echo "compare_revisions: unknown option '$1'; the only one is --help" >&2 && exit 2 ;;
esac

cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
revision=$(git rev-parse --verify --quiet "${1-HEAD~1}^{commit}") || {
    echo "compare_revisions: '${1-HEAD~1}' is not a revision of this repository" >&2
    exit 2
}
folder=$(mktemp --directory)
trap 'git worktree remove --force -- "$folder/before" 2>/dev/null; rm -rf -- "$folder"' EXIT
git worktree add --quiet --detach -- "$folder/before" "$revision"
for side in before after; do
    tree=$PWD
    if [[ $side == before ]]; then tree=$folder/before; fi
    echo "== $side: the package in $tree" >&2
    PYTHONPATH=$tree .venv/bin/python scripts/training_digests.py >"$folder/$side.txt"
done
if diff --unified=0 "$folder/before.txt" "$folder/after.txt"; then
    echo "$(wc -l <"$folder/after.txt") trainings: the same bits before and after"
else
    echo "some training runs have other bits" >&2
    exit 1
fi
