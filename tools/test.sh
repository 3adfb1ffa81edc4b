# shellcheck shell=bash
# Chooses the steps of the test, runs them in the order of this list, and sums up.

# Name, the steps that must have run before it (or -), what it checks. checks.sh does it.
STEPS='
packages        -                 the Python packages of the tests and demos can be installed
manifest        -                 codegen/ship.manifest is what the generator makes
build           -                 the library and its tests build with gcc
format          packages          C, CUDA, Python and shell: format and lint
unit            build             tests in C
generator       build,packages    tests of codegen/
processors      build             tests in C on processors that can do less than this one
python          build,packages    tests in Python that are fast
interface       build             header dialects, layout, symbols, ABI
tree            build,packages    include rule, documented examples, paths and links, this script
python-long     build,packages    the others: every kernel, many lengths, threads, command line
demo            build,packages    tests of the demo
rust            build             the crates: format, tests against the library, documented programs
consumers       build             find_package, pkg-config, FetchContent, packages
wheel           packages          the wheel for every Linux, its exports and commands
dist            -                 the source release builds without Python, installs, serves a program
broken-nvcc     -                 configuring with a CUDA compiler that fails
cuda            packages          the library with its CUDA kernels
amx             packages          AMX kernels with emulated tiles; pointers that overflow in them
clang           -                 build and tests in C with clang
address         -                 tests in C with address and undefined behaviour sanitizers
address-python  address,packages  tests in Python with the same
thread          -                 tests of threads with the thread sanitizer
fuzz            -                 each fuzzer for 12 seconds
aarch64         -                 a cross build and tests in C under qemu
engines         build             programs that compute their attention by the library (not in all)
'
# These fetch and build other programs, which takes minutes or gigabytes: only their names select them.
APART=' engines '
QUICK='format manifest build unit interface generator python tree'

named_steps() {
    awk 'NF { print $1 }' <<<"$STEPS"
}

all_steps() {
    local name
    for name in $(named_steps); do
        [[ $APART == *" $name "* ]] || echo "$name"
    done
}

# Prints the steps that one needs, and those that they need.
needed_by() { # step
    local needs name
    needs=$(awk -v step="$1" '$1 == step && $2 != "-" { print $2 }' <<<"$STEPS")
    for name in ${needs//,/ }; do
        needed_by "$name"
        echo "$name"
    done
}

with_needs() { # step
    needed_by "$1"
    echo "$1"
}

list_steps() {
    sed '/^$/d; s/^\([^ ]* *\)[^ ]* */  \1/' <<<"$STEPS"
    printf '\nquick: %s\n' "$QUICK"
}

# Sets SELECTED to the steps of those names, and those that they need, in the order of the list.
select_steps() { # name...
    local name step wanted=' '
    for name in "${@:-all}"; do
        case $name in
        all) wanted+="$(all_steps | paste -sd' ') " ;;
        quick) wanted+="$(for step in $QUICK; do with_needs "$step"; done | paste -sd' ') " ;;
        *)
            named_steps | grep -qxF -- "$name" ||
                refuse "there is no step '$name'; ./dev test --list lists them"
            wanted+="$(with_needs "$name" | paste -sd' ') "
            ;;
        esac
    done
    mapfile -t SELECTED < <(named_steps | while read -r name; do
        [[ $wanted != *" $name "* ]] || echo "$name"
    done)
}

# The last tests or files of a step leave processors idle, so two steps run at a time.
MOST_STEPS=2
ENDED=' ' N_PASSED=0 SKIPS=() FAILED=()

may_begin() { # step
    local needed
    for needed in $(needed_by "$1"); do
        [[ $ENDED == *" $needed "* ]] || return 1
    done
}

begin_step() { # name
    local needed
    for needed in $(needed_by "$1"); do
        if [[ " ${FAILED[*]} " == *" $needed "* ]]; then
            echo "$PART$1  FAILED   it needs the step $needed"
            FAILED+=("$1")
            ENDED+="$1 "
            return
        fi
    done
    begin_run "$1" "$LOGS/$1.log" "step_${1//-/_}"
}

await_step() {
    await_run
    ENDED+="$RAN "
    case $STATUS in
    0) N_PASSED=$((N_PASSED + 1)) ;;
    "$SKIPPED") SKIPS+=("$RAN ($(tail -n 1 "$LOGS/$RAN.log"))") ;;
    *) FAILED+=("$RAN") ;;
    esac
}

# Runs the selected steps. The first in the list that may begin is the next.
run_steps() {
    local i waiting=("${SELECTED[@]}")
    while [ $((${#waiting[@]} + ${#RUNS[@]})) -gt 0 ]; do
        for i in "${!waiting[@]}"; do
            [ ${#RUNS[@]} -lt $MOST_STEPS ] || break
            may_begin "${waiting[i]}" || continue
            printf -v PART '[%2d/%d] ' $((i + 1)) ${#SELECTED[@]}
            begin_step "${waiting[i]}"
            unset "waiting[i]"
        done
        [ ${#RUNS[@]} -eq 0 ] || await_step
    done
}

sum_up() {
    local name
    [ ${#COSTS[@]} -lt 2 ] || print_costs | tee "$LOGS/costs.txt"
    [ ${#SKIPS[@]} -eq 0 ] || printf 'skipped: %s\n' "${SKIPS[@]}"
    for name in "${FAILED[@]}"; do
        echo "failed: $name  log: $LOGS/$name.log"
    done
    processor_clock "$LOGS/times"
    echo "took $(seconds $(($(clock) - BEGIN))), processor $(seconds "$PROCESSOR")"
    echo "$N_PASSED passed, ${#FAILED[@]} failed"
    [ ${#FAILED[@]} -eq 0 ]
}

run_tests() { # name of a step, or all, quick, --list, --of FILE...
    case "$*" in
    --list) list_steps && return ;;
    "--list --of "*) list_tests_of "${@:3}" && return ;;
    "--of "*) select_tests_of "${@:2}" ;;
    *) select_steps "$@" ;;
    esac
    BEGIN=$(clock)
    install_packages "${TEST_NEEDS[@]}"
    run_steps
    sum_up
}
