# shellcheck shell=bash
# Runs the tests of source files, which tests_of.py names.

list_tests_of() { # file...
    install_packages python3:python3
    python3 tools/tests_of.py "$@" || exit 2
}

# Sets TESTS to the lines of tests_of.py, and SELECTED to the steps that run them.
select_tests_of() { # file...
    TESTS=$(list_tests_of "$@") || exit 2
    echo "$TESTS"
    NEEDS_CUDA=no
    ! needs_cuda "$@" || NEEDS_CUDA=yes
    STEPS+='of build,packages -'
    SELECTED=(packages build of)
}

# Says whether the tests of files need a build with CUDA kernels, or at least with rows of them.
needs_cuda() { # file...
    command -v nvcc >/dev/null || return 1
    case " $* " in
    *' src/cuda/'* | *' src/select/'* | *' kernels/common/'* | *' kernels/sm'*) ;;
    *) has_gpu && [ -n "$(tests_of_kind gpu)" ] ;;
    esac
}

# Prints what follows the kind in the lines of a kind.
tests_of_kind() { # unit, python or gpu
    sed -n "s/^$1 //p" <<<"$TESTS"
}

# Runs files of tests in Python: those of which all tests run in one pytest, others by themselves.
run_test_files() { # kind
    local file rows whole=()
    while read -r file rows; do
        if [ -z "$rows" ]; then
            whole+=("$file")
        else
            run_pytest_parallel "$file" -k "$rows" </dev/null
        fi
    done < <(tests_of_kind "$1")
    [ ${#whole[@]} -eq 0 ] || run_pytest_parallel "${whole[@]}"
}

# Builds the library with its CUDA kernels; without a GPU, with the rows of their table alone, from
# which tests of the selection choose.
build_cuda_of() { # folder
    local rows=("-DFLASH_KERNELS=ship $CUDA_FAMILIES" -DFLASH_COMPILED_KERNELS='ship arch=REFERENCE')
    ! has_gpu || rows=()
    configure_cuda "$1" "${rows[@]}"
    compile "$1"
}

step_of() {
    local cuda units left
    units=$(tests_of_kind unit | paste -sd'|')
    [ -z "$units" ] || run_ctest gcc -R "^($units)\$"
    run_test_files python
    cuda=$(has_gpu && echo cuda || echo cuda-rows)
    if [ "$NEEDS_CUDA" = yes ]; then
        build_cuda_of "$cuda"
        [ -z "$units" ] || run_ctest "$cuda" -R "^($units)\$"
    fi
    left=$(tests_of_kind gpu)
    [ -n "$left" ] || return 0
    if [ "$NEEDS_CUDA" = yes ] && has_gpu; then
        LIBRARY=build/cuda run_test_files gpu
    else
        printf 'needs nvcc and a GPU: %s\n' "$left"
        [ "$TESTS" != "gpu ${left//$'\n'/$'\n'gpu }" ] || return "$SKIPPED"
    fi
}
