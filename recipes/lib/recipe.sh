# shellcheck shell=bash
# Options, logging and stages for all recipes. A stage runs once, and again only when its options or
# inputs change. A recipe sources this file, assigns its options with their defaults, then calls
# parse_options, open_run and run_stage.
set -euo pipefail

# Check the tools before their first use. Matching "coreutils" admits the rewrite of GNU's in Rust.
if ((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] < 404)) || ! command -v flock >/dev/null ||
    [[ $(sort --version 2>/dev/null) != *coreutils* ]]; then
    echo "error: recipes need Linux with bash 4.4 or later, flock (of util-linux) and GNU" \
        "coreutils; this is bash $BASH_VERSION on ${OSTYPE-an unknown system}, flock is" \
        "$(command -v flock || echo missing)" >&2
    exit 2
fi
shopt -s inherit_errexit

repository=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd -P)
recipe_dir=$(cd -- "$(dirname -- "$0")" && pwd -P)
export PATH="$repository/.venv/bin:$PATH" PYTHONUTF8=1
# A thread that waits for another turns 1,000 times, then sleeps. libgomp's default is 300,000 times:
# where another program runs, waiting threads then keep the core that the other thread needs.
[[ ${OMP_WAIT_POLICY-} ]] || export GOMP_SPINCOUNT="${GOMP_SPINCOUNT-1000}"

log() { printf '%s %s\n' "$(date '+%F %T')" "$*" >&2; }

# refuse MESSAGE…: wrong use, exit code 2.
refuse() { log "error: $*"; exit 2; }

# shellcheck source=stopping.sh
source "$repository/recipes/lib/stopping.sh"

# as_typed WORD…: print words as a person types them, in quotes only where bash needs some.
as_typed() {
    local _word _words=()
    for _word in "$@"; do
        [[ $_word =~ ^[A-Za-z0-9_@%+=:,./-]+$ ]] || _word=${_word@Q}
        _words+=("$_word")
    done
    printf '%s' "${_words[*]}"
}

# run COMMAND…: print it, then run it.
run() { log "+ $(as_typed "$@")"; "$@"; }

# write_checksums FOLDER: for binarised data; training runs and evaluations compare them.
write_checksums() (cd -- "$1" && sha256sum -- *.bin *.idx dict*.txt >sha256sums)

# check_checksums PATH: refuse binarised data that no longer has its checksums.
check_checksums() {
    [[ -f $1/sha256sums ]] || return 0
    local found
    found=$(cd -- "$1" && LC_ALL=C sha256sum --check --quiet -- sha256sums 2>&1) ||
        refuse "$1 was changed or damaged since it was written (${found%%$'\n'*}): restore it, or" \
            "remove $1/.done to write it again"
}

# absolute PATH: print the absolute path.
absolute() { [[ $1 == /* ]] && echo "$1" || echo "$PWD/$1"; }

# the environment of scripts/setup.sh, or another one where this clone is installed
[[ ${1-} == -h || ${1-} == --help || -x $repository/.venv/bin/highrank ]] ||
    [[ ! -e $repository/.venv && $(highrank --user-dir 2>/dev/null) -ef $repository/highrank_plugins ]] ||
    refuse "$repository/.venv is missing or incomplete; run: bash $repository/scripts/setup.sh"

# shellcheck source=options.sh
source "$repository/recipes/lib/options.sh"

# check_run_name OPTION NAME: the name of a run leads to a folder below EXP_DIR/RECIPE, nowhere else.
check_run_name() {
    [[ $2 != /* && /$2/ != */../* && /$2/ != */./* ]] ||
        refuse "$1 '$2': expected a name, or a path without '..' or '.' below the recipe's folder in" \
            "--exp-dir; --name gives a run its name"
}

# --- one run: a directory, and a lock on it ------------------------------------------------------

# open_run DIRECTORY: all stages write there; a second process is refused. Children inherit the
# lock, so a training run that outlived its killed recipe still holds it. The working directory becomes
# the repository's root: printed commands are short and can be pasted there.
open_run() {
    run_dir=$(absolute "$1")
    run_dir=${run_dir#"$repository/"}
    cd -- "$repository"
    [[ $run_dir != *:* ]] ||
        refuse "$run_dir has a colon, at which fairseq divides paths: choose another folder by" \
            "--exp-dir or --name"
    refuse_links "$run_dir"
    check_run_dir
    local directory=$run_dir
    new_directories=()                  # innermost first
    while [[ ! -e $directory ]]; do
        new_directories+=("$directory")
        directory=$(dirname -- "$directory")
    done
    make_log_folder
    exec 9>>"$run_dir/.lock"
    chmod --quiet o-r -- "$run_dir/.lock" || true   # who cannot open it cannot hold it
    flock --wait 5 9 ||                 # killed processes may take a moment to go
        refuse "another process is working in $run_dir; it was started by process $(<"$run_dir/.lock"):" \
            "wait for its end, or stop it and what it has started"
    echo $$ >"$run_dir/.lock"
}

# make_log_folder: make the run's folder and its folder log, or say why they cannot be written.
make_log_folder() {
    local said
    said=$(mkdir -p -- "$run_dir/log" 2>&1) && [[ -w $run_dir && -w $run_dir/log ]] ||
        refuse "$run_dir cannot be written (${said:-permission denied}): choose another folder by" \
            "--exp-dir or --name"
}

# refuse_links FOLDER: refuse a run's folder where a link has the name of a file that recipes write, since
# that would change the file to which it points. Pipes and devices are refused, too.
refuse_links() {
    local found
    found=$(find "$1"/{.lock,config.yaml,results.json,commands,log} \
        "$1"/*/{.key,.done,command.sh,logs,train.log} "$1"/*/logs/finished \
        ! -type f ! -type d -print -quit 2>/dev/null || true)
    [[ -z $found ]] ||
        refuse "$found is a symbolic link, a pipe or a device in place of one of our files:" \
            "remove it; nothing was written to its target"
}

# check_run_dir: refuse a folder with files that no recipe has written.
check_run_dir() {
    [[ -e $run_dir && ! -e $run_dir/.lock ]] || return 0
    local files
    files=$(find "$run_dir" -maxdepth 1 ! -type d -printf '%f ')
    [[ -z $files ]] ||
        refuse "$run_dir has files that no recipe has written ($files): move them away, or choose" \
            "another folder by --name or --exp-dir"
}

# abandon_run: what is refused before its first stage gives a finished run its configuration back, and
# leaves no new directory behind.
# shellcheck disable=SC2154
abandon_run() {
    [[ -z ${earlier_config-} ]] || echo "$earlier_config" >"$config"
    ((${#new_directories[@]} > 0)) || return 0
    rm -rf -- "${new_directories[0]}"/{.lock,config.yaml,commands}
    rmdir --ignore-fail-on-non-empty -- "${new_directories[0]}/log" "${new_directories[@]}"
}

# --- stages --------------------------------------------------------------------------------------

# digest TEXT PATH…: a hash of the text and of all files under the paths, whatever their location.
# Logs in folders do not count.
digest() {
    local path
    {
        printf '%s\n' "$1"
        for path in "${@:2}"; do
            (
                cd -- "$(dirname -- "$path")"
                path=$(basename -- "$path")
                if [[ -f $path ]]; then sha256sum -- "$path" && exit; fi
                find -L "$path" -type f ! -name '*.log' ! -name '.*' -print0 |
                    LC_ALL=C sort --zero-terminated | xargs --null --no-run-if-empty sha256sum
            )
        done
    } | sha256sum | cut -d ' ' -f 1
}

# run_stage NUMBER NAME WHAT FUNCTION TEXT [PATH…]
# Runs FUNCTION, which writes into $out, unless it has run with the same TEXT (its options) and the
# same contents of PATH… (its inputs). $out gets its name, $run_dir/NAME, when it is complete.
# Before --stage, it refuses output of other options or inputs.
run_stage() {
    if (($1 < stage)); then
        check_earlier "$@"
        return
    fi
    look_at_stage "$@"
    [[ $stage_due == yes ]] || return 0
    check_output "$run_dir/$2"
    out=$run_dir/$2.part
    if [[ -e $out/.key && ! -e $out/.written ]]; then   # killed before it could list its files
        set_aside "$1 $2: was killed before its end; what it left, and any files of yours, are kept in"
    fi
    remove_output "$out"
    mkdir -- "$out"
    echo "$stage_key" >"$out/.key"
    log_stage "$1" "$2" "$4"
    echo "$stage_key" >"$out/.done"
    list_files "$out" >"$out/.written"
    remove_output "$run_dir/$2"
    mv -- "$out" "$run_dir/$2"
}

# set_aside WHAT: keep $out under another name, which the log names after WHAT.
set_aside() {
    local old
    old=$out.before-$(date '+%Y%m%d-%H%M%S')
    mv -- "$out" "$old"
    log "stage $1 $old"
}

# list_files FOLDER: print the names of all files in it, each followed by NUL.
list_files() { find "$1" ! -type d -printf '%P\0' | LC_ALL=C sort --zero-terminated; }

# check_output FOLDER: refuse a folder with contents that no stage has written. Stages write .key
# when they begin, .done when they are complete, and .written, the names of their files, when they end.
check_output() {
    [[ -e $1/.key || -e $1/.done || -z $(ls -A -- "$1" 2>/dev/null) ]] ||
        refuse "$1 was not written by this recipe, which would replace it: move it away, or choose" \
            "another folder by --name or --exp-dir"
    [[ -f $1/.written && ! -L $1 ]] || return 0     # a link is removed without its files
    local others
    others=$(list_files "$1" | LC_ALL=C comm -z -13 -- "$1/.written" - | tr '\0' ' ')
    [[ -z $others ]] ||
        refuse "$1 has files that this recipe has not written ($others): move them away, since" \
            "the stage replaces the folder"
}

# remove_output FOLDER: remove what a stage has written.
remove_output() {
    check_output "$1"
    rm -rf -- "$1"
}

# run_resumable_stage …: as run_stage, for a FUNCTION that resumes its interrupted work in $out, which
# is $run_dir/NAME from the start. Work with other options or inputs is kept under another name.
run_resumable_stage() {
    if (($1 < stage)); then
        check_earlier "$@"
        return
    fi
    look_at_stage "$@"
    [[ $stage_due == yes ]] || return 0
    out=$run_dir/$2
    check_output "$out"
    if [[ -e $out && $(cat -- "$out/.key" 2>/dev/null || true) != "$stage_key" ]]; then
        local path
        for path in "${@:6}"; do check_checksums "$path"; done
        set_aside "$1 $2: options or inputs have changed; the earlier work is kept in"
    fi
    mkdir -p -- "$out"
    echo "$stage_key" >"$out/.key"
    log_stage "$1" "$2" "$4"
    echo "$stage_key" >"$out/.done"
}

# check_earlier …: with the arguments of run_stage, for a stage before --stage. Refuses incomplete
# output, and output of other options or inputs. Inputs that are gone cannot be compared.
check_earlier() {
    local path
    for path in "$run_dir/$2" "${@:6}"; do
        [[ -e $path ]] || return 0      # the stage that needs the output reports it
    done
    find_stage_key "$@"
    if [[ $(cat -- "$run_dir/$2/.key" 2>/dev/null || true) != "$stage_key" ]]; then
        abandon_run
        refuse "stage $1 ($2) was run with other options or inputs than this command's:" \
            "give those of $run_dir/$2${6+ (its inputs: ${*:6:2})}, or run it again with --stage $1"
    fi
    [[ -e $run_dir/$2/.done ]] ||
        refuse "stage $1 ($2) is incomplete; run --stage $1 to resume it"
}

# in_range NUMBER: whether --stage and --stop-stage include this stage.
# shellcheck disable=SC2154
in_range() { (($1 >= stage && $1 <= stop_stage)); }

# look_at_stage …: with the arguments of run_stage: sets stage_due and stage_key, and logs the stage.
look_at_stage() {
    stage_due=no
    if ! in_range "$1"; then return; fi
    find_stage_key "$@"
    if [[ $(cat -- "$run_dir/$2/.done" 2>/dev/null || true) == "$stage_key" ]]; then
        log "stage $1 $2: already done, and nothing has changed"
    else
        log "stage $1 $2: $3"
        refuse_links "$run_dir"         # again: some may have appeared since the start
        stage_due=yes
    fi
}

# find_stage_key …: with the arguments of run_stage: sets stage_key, a hash of options and inputs.
find_stage_key() {
    local path folder
    for path in "${@:6}"; do
        [[ ! -e $path ]] || continue
        folder=${path#"$run_dir"/}
        folder=$run_dir/${folder%%/*}
        [[ ! -e $folder/.done ]] ||
            refuse "stage $1 ($2) needs $path, which was removed: remove $folder/.done, too, and" \
                "start with the stage that writes $folder"
        refuse "stage $1 ($2) needs $path: start with an earlier --stage"
    done
    stage_key=$(digest "${@:5}")
}

# bytes_of PATH…: the size of files and folders.
bytes_of() { du --summarize --bytes --dereference --total -- "$@" | tail -n 1 | cut -f 1; }

# need_space BYTES: refuse a stage whose output of up to BYTES may not fit on the disk.
need_space() {
    local free
    [[ $1 =~ ^-?[0-9]+$ ]] || return 1  # the command that counts them has failed, and said why
    free=$(df --output=avail --block-size=1 -- "$out" | tail -n 1)
    ((free >= $1)) ||
        refuse "$(numfmt --to=iec "$1") are needed on the disk of $out, $(numfmt --to=iec "$free")" \
            "are free: free some space, or write elsewhere with --exp-dir"
}

# without_chatter: drop fairseq's messages of level INFO, except progress; the logs keep all. Numbers of
# a training run become a short line.
without_chatter() {
    local info='(INFO:|[-0-9]{10} [:0-9]{8} \| INFO \| )'  # Python's format and that of fairseq's tools
    local epoch='.*"epoch": ([0-9]+)' loss='loss": "([^"]*)"' updates='num_updates": "([0-9]+)"'
    sed -uE "s/^${info}train_inner$epoch.*\"$loss.*\"wps\": \"([0-9]+).*\"$updates.*/epoch \2, update \5: loss \3, \4 words\/s/
        s/^${info}valid$epoch.*\"valid_$loss.*\"valid_$updates.*/epoch \2, update \4: validation loss \3/
        s/^${info}[a-z_.]+ \| (epoch [0-9]+ is done; about .* left)$/\2/
        s/^${info}fairseq\.logging\.progress_bar(:*| \| )//; /^$info/d
        s|^:? *([0-9]+) / ([0-9]+) wps=([0-9]+)(\.[0-9]+)?\$|\1 of \2 batches, \3 tokens/s|"
}

# log_stage NUMBER NAME FUNCTION: run it, show and keep its output. Exits if it fails, is stopped, or
# ends with exit code 75, which means that it continues elsewhere.
log_stage() {
    local file=$run_dir/log/$1-$2.log started=$SECONDS
    run_watched run_piped "$3" "$file"
    if [[ $out == *.part ]]; then       # without a list on a full disk, as after a kill
        list_files "$out" 2>/dev/null >"$out/.written" || rm -f -- "$out/.written"
    fi
    if [[ -n $stop_signal ]]; then
        end_stopped "stage $1 ($2) was stopped by SIG$stop_signal"
    elif ((stage_status == 75)); then   # EX_TEMPFAIL of sysexits.h
        log "stage $1 ($2) is incomplete; run the same command to resume it"
        exit "$stage_status"
    elif ((stage_status != 0)); then
        log "error: stage $1 ($2) failed with exit code $stage_status; its output is in $file"
        exit "$stage_status"
    fi
    log "stage $1 $2: done in $((SECONDS - started)) s"
}
