# shellcheck shell=bash
# The steps of the test: step_NAME runs the step NAME that test.sh lists.

shell_scripts() {
    find dev .ci/run
    find tests tools -name '*.sh'
}

step_packages() {
    local list
    is_installed tools/requirements.txt || pip_install tools/requirements.txt
    for list in examples/{chat,sentence_similarity}/requirements.txt; do
        is_installed "$list" || pip_install "$list" --no-deps
    done
}

step_format() {
    local script
    c_sources | xargs "$VENV/bin/clang-format" --dry-run -Werror
    "$VENV/bin/ruff" check .
    for script in $(shell_scripts); do
        bash -n "$script"
    done
    ! command -v shellcheck >/dev/null || shell_scripts | xargs shellcheck
}

step_manifest() {
    python3 -m codegen --check codegen/ship.manifest
}

step_build() {
    build
}

run_pytest() { # pytest argument...
    FLASHATTN_LIBRARY=$PWD/${LIBRARY:-build/gcc}/libflashattn.so PYTHONPATH=$BINDINGS \
        "$PYTHON" -m pytest -q -p no:cacheprovider "$@"
}

# Runs pytest with its tests spread over the processors.
run_pytest_parallel() { # pytest argument...
    run_pytest --numprocesses "$JOBS" "$@"
}

# Only a test that hangs takes an hour.
CTEST=(ctest --output-on-failure --no-tests=error --parallel "$JOBS" --timeout 3600)

# Steps that run at the same time take turns in a folder, where ctest has files of one name.
run_ctest() { # folder below build/, ctest option...
    local folder=build/$1
    shift
    flock "$folder" "${CTEST[@]}" --test-dir "$folder" "$@"
}

step_unit() {
    run_ctest gcc -L unit
}

# Says whether the processor has an instruction set, under Linux's name of it.
runs() { # name
    grep -qw "$1" /proc/cpuinfo
}

# Runs tests as on every lesser processor: each instruction set but the highest one is tried.
step_processors() {
    local isa isas=(reference avx2)
    ! runs avx512_bf16 || isas+=(avx512)
    ! runs amx_bf16 || isas+=(avx512_bf16)
    for isa in "${isas[@]}"; do
        FLASHATTN_CPU_ISA=$isa run_ctest gcc -R '^(table|forward|combine|threads)$'
    done
}

step_interface() {
    run_ctest gcc -L abi
}

step_generator() {
    run_pytest_parallel tests/codegen
}

# The tests in these files take seconds together, and cover all of the binding and every family.
FAST_PYTHON_TESTS=(tests/python/test_{abi_mirror,arrays,combine,config,device_workspace,edge_cases}.py
    tests/python/test_{cuda_absent,environment,header_readers,package,random_problems,refusals}.py)

step_python() {
    run_pytest_parallel "${FAST_PYTHON_TESTS[@]}"
}

step_python_long() {
    run_pytest_parallel "${FAST_PYTHON_TESTS[@]/#/--ignore=}" tests/python
}

step_tree() {
    run_pytest tests/tree
}

# numpy has one thread, because more would wait for each other on busy processors.
step_demo() {
    OPENBLAS_NUM_THREADS=1 run_pytest_parallel examples/tests
}

# The crates have no dependencies, so that cargo needs no network.
step_rust() {
    local wanted found refusal
    wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' bindings/rust/Cargo.toml)
    if ! found=$(rustc --version 2>&1) || ! command -v cargo >/dev/null ||
        ! printf '%s\n' "$wanted" "$(cut -d' ' -f2 <<<"$found")" | sort -CV; then
        echo "needs cargo and rustc $wanted or newer"
        return "$SKIPPED"
    fi
    cargo fmt --version >/dev/null 2>&1 && (cd bindings/rust && cargo fmt --check)
    FLASHATTN_LIB_DIR=$PWD/build/gcc LD_LIBRARY_PATH=$PWD/build/gcc RUSTFLAGS=-Dwarnings \
        CARGO_TARGET_DIR=$PWD/build/rust \
        cargo test --quiet --offline --locked --manifest-path bindings/rust/Cargo.toml
    FLASHATTN_LIB_DIR=$PWD/build/gcc LD_LIBRARY_PATH=$PWD/build/gcc RUSTFLAGS=-Dwarnings \
        CARGO_TARGET_DIR=$PWD/build/rust cargo run --quiet --offline --locked \
        --manifest-path bindings/rust/Cargo.toml --example attention
    refusal=$(FLASHATTN_LIB_DIR=build/gcc CARGO_TARGET_DIR=$PWD/build/rust cargo check --quiet \
        --offline --locked --manifest-path bindings/rust/Cargo.toml 2>&1) || true
    grep --quiet "build/gcc.*: not an absolute path" <<<"$refusal"
}

step_consumers() {
    run_ctest gcc -L consumer
}

# Makes the wheel of ./dev wheel with the reference kernels alone, and uses it: step_dist compiles the
# others.
step_wheel() {
    local site=$PWD/build/wheel/site
    build_portable_wheel build/wheel -DFLASH_CUDA=OFF -DFLASH_KERNELS='ship arch=REFERENCE'
    "$PYTHON" -m pip install --quiet --no-deps --target "$site" \
        build/wheel/flashattn-*-py3-none-manylinux*.whl
    python3 tests/abi/check_exports.py include/flashattn.h src/xla/xla_{backward,forward}.h \
        "$site/flashattn/libflashattn.so"
    export PYTHONPATH=$site
    cd "$site" || return # not where the sources of the package are
    "$PYTHON" -m flashattn info
    "$PYTHON" bin/flashattn --version
    ls flashattn/ggml/plugin/{entry.cc,flashattn.h}
    "$PYTHON" -m flashattn check
}

# Makes an object that git can archive of the working tree, with files that git does not know yet.
working_tree() { # index to make
    export GIT_INDEX_FILE=$1
    git read-tree HEAD
    git add --all
    git write-tree
}

# Makes the source release of the working tree, the same bytes twice, builds it without Python,
# installs it, and builds a program that uses it. The step build has compiled the same kernels as
# users do; with less optimisation they take half the time.
step_dist() {
    local dist=$PWD/build/dist tree sources
    if ! git rev-parse --quiet --verify HEAD; then
        echo "needs a git checkout"
        return "$SKIPPED"
    fi
    rm -rf "$dist"
    mkdir -p "$dist/unpacked"
    tree=$(working_tree "$dist/index")
    cmake -P cmake/dist.cmake "$dist" "$tree"
    cmake -P cmake/dist.cmake "$dist/again" "$tree"
    cmp "$dist"/flashattn-*.tar.gz "$dist"/again/flashattn-*.tar.gz
    tar -xf "$dist"/flashattn-*.tar.gz -C "$dist/unpacked"
    sources=$(echo "$dist"/unpacked/flashattn-*)
    cmake -S "$sources" -B "$dist/build" -G Ninja \
        -DCMAKE_C_COMPILER=gcc -DCMAKE_BUILD_TYPE=Debug -DCMAKE_C_FLAGS_DEBUG=-O1 \
        -DFLASH_CUDA=OFF -DCMAKE_DISABLE_FIND_PACKAGE_Python3=ON
    cmake --build "$dist/build" --parallel "$JOBS"
    cmake --install "$dist/build" --prefix "$dist/installed"
    cmake -D SOURCE_DIR="$sources/tests/consumers/find_package" -D WORK_DIR="$dist/consumer" \
        -D PREFIX="$dist/installed" -D C_COMPILER=gcc -D GENERATOR=Ninja \
        -P "$sources/tests/consumers/build_and_run.cmake"
}

# Builds the library with its CUDA kernels. It must load and serve the CPU with and without a GPU;
# with one its kernels are tested too.
#
# Without a GPU CUDA kernels are compiled too, but in less time: those of the set values, which has
# each head dimension, class of features, type and tactic of a family, several in a file, and each
# family for one architecture. SM80 takes 8.0 and SM80_DECODE 9.0, so that every branch on
# __CUDA_ARCH__ is compiled. nvcc optimises as for users where tests look at machine code, which is
# that of Hopper's families.
# The table has every row, from which the tests of the selection choose. Of the CPU kernels there is
# the reference alone.
CUDA_FAMILIES=arch=SM80,SM80_DECODE,SM80_MLA,SM80_WIDE,SM90,SM90_DECODE,SM90_MLA,SM90_WIDE,MIXED
CUDA_WITHOUT_GPU=(-DFLASH_CUDA_CODE_SM80=80-real -DFLASH_CUDA_CODE_SM80_BEFORE_90=80-real
    -DFLASH_CUDA_CODE_SM80_ONE_SOURCE=80-real
    -DFLASH_CUDA_CODE_SM80_DECODE=90-real -DFLASH_CUDA_CODE_SM80_MLA=90-real
    -DFLASH_CUDA_CODE_SM80_MLA_BEFORE_90=90-real
    -DFLASH_CUDA_CODE_SM80_WIDE=90-real -DFLASH_CUDA_CODE_SM80_WIDE_BEFORE_90=90-real
    -DCMAKE_CUDA_COMPILER_LAUNCHER="$PWD/tools/hasty_nvcc.sh"
    "-DFLASH_KERNELS=ship $CUDA_FAMILIES" -DFLASH_COMPILED_KERNELS=values)

configure_cuda() { # folder, CMake option...
    local folder=$1
    shift
    configure "$folder" -DCMAKE_C_COMPILER=gcc -DCMAKE_BUILD_TYPE=Release -DFLASH_CUDA=ON "$@"
}

step_cuda() {
    local folder=cuda less=()
    if ! command -v nvcc >/dev/null; then
        ! configure cuda -DFLASH_CUDA=ON >"$LOGS/no-cuda.log" 2>&1 || return 1
        grep -o 'FLASH_CUDA=ON, but no nvcc found' "$LOGS/no-cuda.log"
        echo "needs nvcc of CUDA 13.0 or newer"
        return "$SKIPPED"
    fi
    has_gpu || folder=cuda-without-gpu less=("${CUDA_WITHOUT_GPU[@]}")
    configure_cuda $folder "${less[@]}"
    compile $folder
    run_ctest $folder -L unit
    run_ctest $folder -R '^(exports|dynamic|sm90_main_loops)$'
    LIBRARY=build/$folder run_pytest tests/python/test_{arrays,refusals,package}.py tests/gpu
}

# Configures with a broken CUDA compiler: that gives the CPU library by default, and a refusal where
# CUDA is demanded, both times with the compiler's own words.
step_broken_nvcc() {
    local fake=$PWD/build/broken-nvcc/bin/nvcc words='fake nvcc: out of order'
    rm -rf build/broken-nvcc
    mkdir -p "${fake%/*}"
    printf '#!/bin/sh\necho "%s" >&2\nexit 3\n' "$words" >"$fake"
    chmod +x "$fake"
    CUDACXX=$fake configure broken-nvcc/auto -DFLASH_CUDA=AUTO -DFLASH_BUILD_TESTS=OFF \
        >"$LOGS/broken-nvcc-auto.log" 2>&1
    ! CUDACXX=$fake configure broken-nvcc/on -DFLASH_CUDA=ON -DFLASH_BUILD_TESTS=OFF \
        >"$LOGS/broken-nvcc-on.log" 2>&1 || return 1
    grep 'building the CPU library' "$LOGS/broken-nvcc-auto.log"
    grep "$words" "$LOGS/broken-nvcc-auto.log"
    grep 'FLASH_CUDA=ON, but' "$LOGS/broken-nvcc-on.log"
    grep "$words" "$LOGS/broken-nvcc-on.log"
}

step_clang() {
    configure clang -DCMAKE_C_COMPILER=clang -DCMAKE_BUILD_TYPE=Release
    compile clang
    run_ctest clang -L unit
}

# Sanitizers see nothing in kernels that do not run, and those take longest to compile: only families
# that the processor can run have kernels then. Those of AMX, which it may not have, are tested with
# tile instructions in C, also because sanitizers do not see what tiles read and write.
SANITIZED=(-DFLASH_KERNELS='ship arch=REFERENCE,AVX2,NEON,NEON_BF16')
if runs avx512_bf16; then
    SANITIZED=(-DFLASH_KERNELS='ship arch=REFERENCE,AVX2,AVX512,AVX512_BF16,AMX'
        -DFLASH_EMULATE_AMX=ON)
elif runs avx512vl; then
    SANITIZED=(-DFLASH_KERNELS='ship arch=REFERENCE,AVX2,AVX512')
fi

configure_sanitized() { # folder, compiler, sanitizers, [CMake option...]
    configure "$1" -DCMAKE_C_COMPILER="$2" -DCMAKE_BUILD_TYPE=RelWithDebInfo \
        -DFLASH_SANITIZE="$3" "${SANITIZED[@]}" "${@:4}"
}

# Rows of other families are left out. Pointers that overflow are checked too, for which gcc takes
# too long in AMX kernels with every other check. Python's other tests reach these kernels in
# step_address_python, which walks the table's reference rows too.
step_amx() {
    local tests=tests/python/test
    if ! runs avx512_bf16; then
        echo "needs a processor with AVX512_BF16, which AMX kernels use besides tiles"
        return "$SKIPPED"
    fi
    configure_sanitized amx gcc pointer-overflow -DFLASH_KERNELS='ship arch=REFERENCE,AMX'
    compile amx
    run_ctest amx -L unit
    LIBRARY=build/amx run_pytest_parallel -k 'not (test_table.py and REFERENCE)' \
        "$tests"_{bias,determinism,hidden_blocks,paging,random_problems,sinks,table,threads}.py \
        "$tests"_workspace.py "$tests"_backward{,_determinism,_joint,_plain,_values}.py
}

# A cancelled thread leaves marks of its frames on its stack, and gcc's runtime would meet them when
# it takes down the thread's signal stack.
step_address() {
    configure_sanitized address gcc 'address;undefined'
    compile address
    ASAN_OPTIONS=use_sigaltstack=0 UBSAN_OPTIONS=print_stacktrace=1 run_ctest address -L unit
}

# The interpreter is not instrumented, so the runtime is loaded before it, and its leaks do not
# count.
run_sanitized_pytest() { # pytest argument...
    ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 PYTHONMALLOC=malloc \
        LD_PRELOAD="$(gcc -print-file-name=libasan.so) $(gcc -print-file-name=libstdc++.so)" \
        LIBRARY=build/address run_pytest_parallel "$@"
}

# Problems of all kinds, but of those that take the same ways through the kernels' memory one: not
# the largest, which need more memory and time; infinite values beside NaN; pages of 3 and 16 tokens,
# on one number of threads, and no comparison of oracles; and of the table walk the kernels that load
# and store tiles.
step_address_python() {
    local tests=tests/python/test
    local largest='2_to_the_31 or long_lengths or 8200] or [40000- or [20-128-4- or [140-14000]'
    local pages='chunk or [1- or -1- or -19- or -64- or -128- or -256- or -1] or -2] or oracles'
    local rows='test_table.py and not (AMX or runnable)'
    run_sanitized_pytest -k "not ($largest or inf] or test_paging.py and ($pages) or $rows)" \
        "$tests"_{arrays,backward_memory,backward_table,combine,edge_cases,few_rows,paging}.py \
        "$tests"_{random_problems,refusals,split_keys,strides,table}.py
}

# Threads meet in the library, and in what kernels read and write, which is the same for all that are
# made of kernels/cpu/tiled: of a processor's families the least has it all, and AMX. ThreadSanitizer
# does not know every layout of memory that newer kernels of Linux choose.
step_thread() {
    local families=REFERENCE,AVX2,NEON fixed_layout=()
    ! runs avx512_bf16 || families+=,AMX
    ! setarch -R true 2>/dev/null || fixed_layout=(setarch -R)
    configure_sanitized thread gcc thread -DFLASH_KERNELS="ship arch=$families"
    compile thread kernels gradient_kernels test_append test_backward test_threads test_executor \
        test_countdown
    TSAN_OPTIONS=halt_on_error=1 "${fixed_layout[@]}" "${CTEST[@]}" --test-dir build/thread -L thread
}

# Runs a fuzzer. Its log is the step's when it has ended, because others run at the same time.
fuzz() { # target [libFuzzer option...]
    local target=$1 log=build/fuzzer/$1.log status=0
    shift
    mkdir -p "build/corpus/$target"
    "build/fuzzer/tests/fuzz/fuzz_$target" -max_total_time=12 -timeout=3600 -print_final_stats=1 \
        -artifact_prefix="build/fuzzer/$target-" "$@" "build/corpus/$target" \
        >"$log" 2>&1 || status=$?
    cat "$log"
    return $status
}

# Fuzzers are about arguments. Kernels of more instruction sets, which take long to compile, are left
# to step_address_python, whose kernels see problems of all kinds.
step_fuzz() {
    configure_sanitized fuzzer clang 'fuzzer;address;undefined' -DFLASH_EMULATE_AMX=OFF \
        -DFLASH_KERNELS='ship arch=REFERENCE,AVX2,NEON'
    compile fuzzer
    export -f fuzz
    xargs --max-procs="$JOBS" --max-lines=1 bash -c 'fuzz "$@"' fuzz <<'END'
append -max_len=512
arguments -max_len=512
combine -max_len=512
config_text -dict=tests/fuzz/config_text.dict -max_len=300
lookup -max_len=64
tuning -dict=tests/fuzz/tuning.dict -max_len=2000
END
}

step_aarch64() {
    local missing
    missing=$(missing_packages aarch64-linux-gnu-gcc:gcc-aarch64-linux-gnu \
        qemu-aarch64:qemu-user | paste -sd' ')
    if [ -n "$missing" ]; then
        echo "needs the packages: $missing"
        return "$SKIPPED"
    fi
    configure aarch64 -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
        -DCMAKE_C_COMPILER=aarch64-linux-gnu-gcc -DCMAKE_BUILD_TYPE=Release \
        -DCMAKE_CROSSCOMPILING_EMULATOR='qemu-aarch64;-L;/usr/aarch64-linux-gnu'
    compile aarch64 flashattn smoke kernels gradient_kernels print_layout previous_client
    run_ctest aarch64 -R '^(smoke|kernels|kernels_latent|gradient_kernels|layout|previous_client)$'
}

# Installs what an engine's tests need into an environment of its own: what NAME.txt lists, and
# without what they need the packages of NAME.no-deps. What it builds takes minutes.
install_engine() { # engine
    local list=tests/engines/$1.txt alone=tests/engines/$1.no-deps folder=build/engines/$1
    ! cmp -s "$list" "$folder/installed.txt" || return 0
    python3 -m venv --clear "$folder"
    "$folder/bin/python" -m pip install --disable-pip-version-check -r "$list"
    [ ! -e "$alone" ] ||
        "$folder/bin/python" -m pip install --disable-pip-version-check --no-deps -r "$alone"
    cp "$list" "$folder/installed.txt"
}

# Runs the tests of each engine, tests/engines/test_NAME.py, with what NAME.txt lists. The terminal
# shows which of them it is at, and the log what each test took.
step_engines() {
    local i name lists=(tests/engines/*.txt)
    for i in "${!lists[@]}"; do
        name=$(basename "${lists[i]}" .txt)
        echo "[$((i + 1))/${#lists[@]}] $name"
        install_engine "$name"
        PYTHON=build/engines/$name/bin/python run_pytest -rP --durations 0 --durations-min 5 \
            "tests/engines/test_$name.py"
    done
}
