#!/usr/bin/env bash
# Sets everything up, lints, type-checks and runs all tests; ends with the time per step.
set -euo pipefail

usage() {
    cat <<'TEXT'
usage: bash scripts/test.sh [--fast | --all]

Sets everything up, then runs ruff, mypy, shellcheck and pytest.
Ends with a table of times and the line "N passed, N failed, N skipped"; exits 1 if any failed.

Of tests that take more than 1 s it runs some cases, and none that takes 5 s.

  --fast   leave out the tests that take more than 0.3 s, by tests/durations.json
  --all    run everything, for a night; writes tests/durations.json
TEXT
}

select_tests=(--sample)
case "${1-}" in
    "") ;;
    --fast) select_tests=(--fast) ;;
    --all) select_tests=(--run-long --write-durations) ;;
    -h | --help) usage && exit 0 ;;
    *) echo "test: unknown option '$1'; known are --fast, --all, --help" >&2 && exit 2 ;;
esac

cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh
export PATH="$PWD/.venv/bin:$PATH"
export OMP_NUM_THREADS=1            # three pytest workers share the cores

# install_set FILE WITHOUT OPTION...: pinned packages that the ordinary install leaves out
install_set() {
    echo "== installing $1"
    python -m pip install --disable-pip-version-check --quiet --no-deps --requirement "$1" "${@:3}" ||
        echo "test: cannot install $1; $2" >&2
}

# torch for CUDA brings its own triton; elsewhere the kernels are tested in its interpreter
if python -c 'import importlib.util as u, torch; exit(bool(u.find_spec("triton") or torch.version.cuda))'
then
    install_set requirements/triton.txt "the tests of the triton kernels are skipped"
fi
if [[ ! -d .venv/triton_oldest ]]; then
    install_set requirements/triton_oldest.txt "the test of the oldest triton is skipped" \
        --target .venv/triton_oldest
fi
if python -c 'import importlib.util as u; exit(all(map(u.find_spec, ["furo", "myst_nb", "sphinx"])))'
then
    install_set requirements/docs.txt "the test that builds the documentation is skipped"
fi

log="$(mktemp)"
trap 'rm -f -- "$log"' EXIT
passed=0 failed=0 skipped=0
table=()

# count WORD…: the sum of "N WORD" in pytest's closing line, which a late warning may follow
count() {
    local word sum=0 number
    for word in "$@"; do
        number="$(grep -E ' in [0-9.]+s' "$log" | tail -n 1 | grep -oE "[0-9]+ $word" |
            head -n 1 | cut -d ' ' -f 1 || true)"
        sum=$((sum + ${number:-0}))
    done
    echo "$sum"
}

finish() {                          # finish NAME STARTED PASSED FAILED SKIPPED
    passed=$((passed + $3)) failed=$((failed + $4)) skipped=$((skipped + $5))
    table+=("$(printf '%-32s %6d s %7d %7d %8d' "$1" "$((SECONDS - $2))" "$3" "$4" "$5")")
}

lint() {                            # lint NAME COMMAND…: one check, passed or failed
    local name="$1" started=$SECONDS
    shift
    echo "== $name: $*"
    if "$@"; then finish "$name" "$started" 1 0 0; else finish "$name" "$started" 0 1 0; fi
}

run_tests() {
    local started=$SECONDS status=0 broken
    echo "== pytest"
    # three workers on two cores, since many tests wait for processes and time limits;
    # loadgroup: tests that share a costly fixture stay together by @pytest.mark.xdist_group
    pytest -q -n 3 --dist loadgroup --durations 20 --durations-min 5 \
        "${select_tests[@]+"${select_tests[@]}"}" tests 2>&1 | tee "$log" || status=$?
    broken=$(count failed error)         # "error" finds "errors" too
    # a crash may leave no count behind
    if ((status != 0 && broken == 0)); then broken=1; fi
    finish pytest "$started" "$(count passed)" "$broken" "$(count skipped)"
}

mapfile -t scripts < <(find . -path './.venv' -prune -o -path './exp' -prune -o \
    \( -name '*.sh' -o -path './.ci/run' \) -type f -print)
lint "ruff check" ruff check .
lint "ruff format" ruff format --check .
lint "mypy" mypy
lint "shellcheck" shellcheck "${scripts[@]}"

run_tests

printf '\n%-32s %8s %7s %7s %8s\n' step time passed failed skipped
printf '%s\n' "${table[@]}"
printf '%-32s %6d s\n\n' total "$SECONDS"
echo "$passed passed, $failed failed, $skipped skipped"
((failed == 0))
