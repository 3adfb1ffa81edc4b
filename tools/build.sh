# shellcheck shell=bash
# Builds the library, and the commands that are a build and little more.

# With ccache only what changed is compiled again, even in a new build folder.
! command -v ccache >/dev/null || export CMAKE_C_COMPILER_LAUNCHER=ccache

# A developer's build has tests, and warnings are errors. CUDA kernels take minutes, and are left out
# unless an option says otherwise.
configure() { # folder below build/, CMake option...
    local folder=build/$1 launcher=$PWD/tools/hasty_cc.sh
    shift
    CMAKE_C_COMPILER_LAUNCHER=$launcher${CMAKE_C_COMPILER_LAUNCHER:+;$CMAKE_C_COMPILER_LAUNCHER} \
        cmake --preset dev -B "$folder" -DFLASH_CUDA=OFF "$@"
}

compile() { # folder below build/, [target...]
    local folder=build/$1
    shift
    cmake --build "$folder" --parallel "$JOBS" ${1:+--target "$@"}
}

# As users build it, whose compilers may warn of what ours does not.
build_release() { # CMake option...
    cmake -S . -B build/release -G Ninja -DCMAKE_BUILD_TYPE=Release -DFLASH_CUDA=OFF "$@"
    compile release
}

demo() { # [sentences|train], argument of the demo...
    local cuda=OFF name=library demo=chat
    case "${1:-}" in
    sentences) demo=sentence_similarity && shift ;;
    train) demo=train && shift ;;
    esac
    set_up_demo "$demo" "$@"
    if [ "$demo" = train ] && ! "$PYTHON" -c 'import torch' 2>/dev/null; then
        give_up "demo train needs torch: $PYTHON -m pip install torch"
    fi
    ! has_gpu || cuda=AUTO name='library with CUDA kernels'
    PART='[3/3] '
    run_logged "$name" "$LOGS/demo.log" build_release -DFLASH_CUDA=$cuda
    [ "$STATUS" -eq 0 ] || exit "$STATUS"
    FLASHATTN_LIBRARY=$PWD/build/release/libflashattn.so PYTHONPATH=$BINDINGS \
        exec "$PYTHON" "examples/$demo" "$@"
}

bench() {
    install_packages "${BENCH_NEEDS[@]}"
    run_logged "building the benchmarks" "$LOGS/bench.log" \
        build_release -DFLASH_BUILD_BENCHMARKS=ON
    [ "$STATUS" -eq 0 ] || exit "$STATUS"
    build/release/benchmarks/benchmark_overhead "$@"
    build/release/benchmarks/benchmark_attention "$@"
}

build() {
    install_packages "${DEMO_NEEDS[@]}"
    # The ABI check reads debug information; the code is that of Release. Nobody reads where
    # variables are at each instruction, which takes gcc a third of the time for a kernel.
    configure gcc -DCMAKE_C_COMPILER=gcc -DCMAKE_BUILD_TYPE=RelWithDebInfo \
        -DCMAKE_C_FLAGS=-fno-var-tracking
    compile gcc
}

manifest() {
    install_packages python3:python3
    python3 -m codegen --manifest codegen/ship.manifest
}

abi_baseline() {
    build
    install_requirements tools/requirements.txt
    build/gcc/tests/abi/print_layout >tests/abi/layout.txt
    python3 tests/abi/check_abi.py --update include/flashattn.h build/gcc/libflashattn.so
    "$PYTHON" bindings/rust/generate.py
}

c_sources() {
    find include src kernels bindings tests tools benchmarks examples -name vendor -prune \
        -o -name '*.[ch]' -print -o -name '*.hpp' -print -o -name '*.cc' -print \
        -o -name '*.cu' -print -o -name '*.cuh' -print
}

format() {
    install_packages "${DEMO_NEEDS[@]}"
    install_requirements tools/requirements.txt
    c_sources | xargs "$VENV/bin/clang-format" -i
    "$VENV/bin/ruff" check --fix .
}
