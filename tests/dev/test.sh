# shellcheck shell=bash
# Chooses the steps of the test, runs them in the order of this list, and sums up.

# Name, the step that must have run before it (or -), what it checks. checks.sh does it.
STEPS='
format          -        C, CUDA, Python and shell: format and lint
manifest        -        codegen/ship.manifest is what the generator makes
build           -        the library and its tests build with gcc
unit            build    tests in C
processors      build    tests in C on processors that can do less than this one
interface       build    header dialects, layout, symbols, ABI
generator       build    tests of codegen/
python          build    tests in Python that are fast
python-long     build    the others: every kernel, many lengths, threads, command line
tree            build    include rule, documented examples, paths and links, this script
demo            build    tests of the demo
consumers       build    find_package, pkg-config, FetchContent, packages
wheel           -        the wheel for every Linux, its exports and commands
dist            -        the source release builds without Python, installs, serves a program
broken-nvcc     -        configuring with a CUDA compiler that fails
cuda            -        the library with its CUDA kernels
amx             -        AMX kernels with emulated tiles; pointers that overflow in them
clang           -        build and tests in C with clang
address         -        tests in C with address and undefined behaviour sanitizers
address-python  address  tests in Python with the same
thread          -        tests of threads with the thread sanitizer
fuzz            -        each fuzzer for 12 seconds
aarch64         -        a cross build and tests in C under qemu
'
QUICK='format manifest build unit interface generator python tree'

all_steps() {
    awk 'NF { print $1 }' <<<"$STEPS"
}

needed_by() { # step
    awk -v step="$1" '$1 == step && $2 != "-" { print $2 }' <<<"$STEPS"
}

list_steps() {
    sed '/^$/d; s/^\([^ ]* *\)[^ ]* */  \1/' <<<"$STEPS"
    printf '\nquick: %s\n' "$QUICK"
}

# Sets SELECTED to the steps of those names, and those that they need, in the order of the list.
select_steps() { # name...
    local name wanted=' '
    for name in "${@:-all}"; do
        case $name in
        all) wanted+="$(all_steps | paste -sd' ') " ;;
        quick) wanted+="$QUICK " ;;
        *)
            all_steps | grep -qxF -- "$name" ||
                refuse "there is no step '$name'; ./dev test --list lists them"
            wanted+="$name $(needed_by "$name") "
            ;;
        esac
    done
    mapfile -t SELECTED < <(all_steps | while read -r name; do
        [[ $wanted != *" $name "* ]] || echo "$name"
    done)
}

N_PASSED=0 SKIPS=() FAILED=()

run_step() { # name
    local needed
    needed=$(needed_by "$1")
    if [[ -n $needed && " ${FAILED[*]} " == *" $needed "* ]]; then
        echo "$PART$1  FAILED   it needs the step $needed"
        STATUS=1
    else
        run_logged "$1" "$LOGS/$1.log" "step_${1//-/_}"
    fi
    case $STATUS in
    0) N_PASSED=$((N_PASSED + 1)) ;;
    "$SKIPPED") SKIPS+=("$1 ($(tail -n 1 "$LOGS/$1.log"))") ;;
    *) FAILED+=("$1") ;;
    esac
}

sum_up() {
    local name
    [ ${#COSTS[@]} -lt 2 ] || print_costs | tee "$LOGS/costs.txt"
    [ ${#SKIPS[@]} -eq 0 ] || printf 'skipped: %s\n' "${SKIPS[@]}"
    for name in "${FAILED[@]}"; do
        echo "failed: $name  log: $LOGS/$name.log"
    done
    processor_clock
    echo "took $(seconds $(($(clock) - BEGIN))), processor $(seconds "$PROCESSOR")"
    echo "$N_PASSED passed, ${#FAILED[@]} failed"
    [ ${#FAILED[@]} -eq 0 ]
}

run_tests() { # name of a step, or all, quick, --list...
    local name n=0
    if [ "$*" = --list ]; then
        list_steps
        return
    fi
    select_steps "$@"
    BEGIN=$(clock)
    install_packages "${TEST_NEEDS[@]}"
    install_requirements tests/requirements.txt
    install_demo_requirements chat
    install_demo_requirements sentence_similarity
    for name in "${SELECTED[@]}"; do
        n=$((n + 1))
        printf -v PART '[%2d/%d] ' $n ${#SELECTED[@]}
        run_step "$name"
    done
    sum_up
}
