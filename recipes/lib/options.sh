# shellcheck shell=bash
# The options of a recipe: lines NAME=DEFAULT  # HELP of its run.sh, above its call of parse_options, and
# those below "# Options" in the libraries that it sources, unless it has its own of that name.
# stop_stage=7 can be set by --stop-stage 3 or --stop-stage=3. An array (set=()) takes one value per flag.
# Locals begin with _ here, so that none hides an option.

shared_options=()                       # files with options of several recipes, the special ones first

# shellcheck disable=SC2154
option_lines() {
    {
        sed -n '/^parse_options/q; /^[a-z][a-z0-9_]*=/p' "$recipe_dir/run.sh"
        sed -n '/^# Options/,/^$/{ /^[a-z_]*=/p }' /dev/null "${shared_options[@]}"
    } | awk -F = '!seen[$1]++'
}

show_help() {
    local _name _default _help
    sed -n '/^$/q; 2,$s/^# \{0,1\}//p' "$recipe_dir/run.sh"
    echo
    option_lines | while IFS='=#' read -r _name _default _help; do
        _default=${_default%%[ ]*}
        [[ $_default != '()' ]] || _default=
        _default=${_default//\'/}
        printf '  --%-17s%s%s\n' "${_name//_/-}" "$_help" "${_default:+ [$_default]}"
    done
}

is_array() { [[ $(declare -p "$1") == 'declare -a'* ]]; }

assign() {                              # assign NAME VALUE
    if is_array "$1"; then
        local -n _array=$1
        _array+=("$2")
    else
        printf -v "$1" '%s' "$2"
    fi
}

# check_flag FLAG NAME…: refuse a flag that is not --NAME of one of these.
check_flag() {
    local _name=${1#--}
    [[ $1 == --* ]] ||
        refuse "unexpected word '$1'; options are written --name value (see --help)"
    [[ " ${*:2} " == *" ${_name//-/_} "* ]] || refuse "unknown option $1; see --help"
}

# check_stages LAST: refuse --stage and --stop-stage outside 0 to LAST, or in the wrong order.
# shellcheck disable=SC2154
check_stages() {
    local _name
    for _name in stage stop_stage; do
        if [[ ! ${!_name} =~ ^[0-9]$ ]] || ((${!_name} > $1)); then
            refuse "--${_name//_/-} '${!_name}': a stage is a number from 0 to $1"
        fi
    done
    ((stage <= stop_stage)) ||
        refuse "--stage $stage is after --stop-stage $stop_stage: there is nothing to do"
}

# The default of stop_stage is the last stage there is.
parse_options() {
    local _names _flag _name _last_stage=$stop_stage
    local -A _defaults=()
    mapfile -t _names < <(option_lines | cut -d= -f1)
    for _name in "${_names[@]}"; do is_array "$_name" || _defaults[$_name]=${!_name}; done
    while (($#)); do
        if [[ $1 == -h || $1 == --help ]]; then show_help && exit 0; fi
        _flag=${1%%=*}
        check_flag "$_flag" "${_names[@]}"
        _name=${_flag#--}
        if [[ $1 == *=* ]]; then
            assign "${_name//-/_}" "${1#*=}"
            shift
        elif (($# > 1)) && [[ $2 != --* ]]; then
            assign "${_name//-/_}" "$2"
            shift 2
        else
            refuse "option $_flag needs a value: $_flag VALUE, or $_flag='--VALUE' if it has dashes"
        fi
    done
    check_stages "$_last_stage"
    log_options "${_names[@]}"
}

# log_options NAME…: those that differ from $_defaults, as they are typed.
log_options() {
    local _words=() _name _word
    for _name in "$@"; do
        if is_array "$_name"; then
            local -n _values=$_name
            for _word in ${_values[@]+"${_values[@]}"}; do _words+=("--${_name//_/-}" "$_word"); done
        elif [[ ${!_name} != "${_defaults[$_name]}" ]]; then
            _words+=("--${_name//_/-}" "${!_name}")
        fi
    done
    if ((${#_words[@]})); then log "options: $(as_typed "${_words[@]}")"; fi
}
