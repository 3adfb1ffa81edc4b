# shellcheck shell=bash
# Measures what it costs to build the library, in processor time, which other work lengthens less
# than the clock's. It is a benchmark and no test: machines differ, and so do their days.

# Makes a file that never changes, by which processors and days can be compared.
make_yardstick() { # file
    local i
    for ((i = 0; i < 400; i++)); do
        echo "void f$i(float *a, const float *b, int n) {
            for (int i = 0; i < n; i++) a[i] = a[i] * b[n - i] + b[i + $i] / a[i / 2]; }"
    done >"$1"
}

# Compiles every file of the library anew, and notes what each takes.
build_timed() { # folder, [CMake option...]
    local folder=$1
    shift
    rm -rf "$folder"
    mkdir -p "$folder"
    make_yardstick "$folder/yardstick.c"
    tools/timed.sh "$folder/times" gcc -O3 -c "$folder/yardstick.c" -o "$folder/yardstick.o"
    local launcher="$PWD/tools/timed.sh;$PWD/$folder/times"
    env -u CMAKE_C_COMPILER_LAUNCHER cmake -S . -B "$folder" -G Ninja -DCMAKE_C_COMPILER=gcc \
        -DCMAKE_BUILD_TYPE=Release -DFLASH_CUDA=OFF "-DCMAKE_C_COMPILER_LAUNCHER=$launcher" \
        "-DCMAKE_CUDA_COMPILER_LAUNCHER=$launcher" "$@"
    cmake --build "$folder" --parallel "$JOBS"
}

# Sums the files' times by kernel family, and compares them with the yardstick's.
report_times() { # file of times
    awk '
        { time = $1 + $2; name = $3; sub(/.*\//, "", name) }
        name == "yardstick.o" { yardstick = time; next }
        { family = "the rest" }
        sub(/^flash_(fwd|bwd_dq|bwd_dkv|bwd)_/, "kernels ", name) {
            split(name, part, /[ _.]/); family = "kernels of " toupper(part[2]) }
        name ~ /[.]cu[.]o$/ {
            family = "the other CUDA files"
            if (match(name, /^sm[0-9]+[a-z]*_/))
                family = "kernels of " toupper(substr(name, 1, RLENGTH - 1)) }
        { sum[family] += time; count[family]++; all += time; n++ }
        END {
            for (f in sum) printf "%8.1f s %5d files  %s\n", sum[f], count[f], f | "sort -rn"
            close("sort -rn")
            printf "%8.1f s %5d files  in all, %.1f minutes: " \
                "%.0f times the %.2f s of a file that never changes\n",
                all, n, all / 60, all / yardstick, yardstick
        }' "$1"
}

processor_name() {
    sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1
}

build_cost() { # CMake option...
    install_packages "${DEMO_NEEDS[@]}"
    run_logged "build" "$LOGS/build-cost.log" build_timed build/cost "$@"
    [ "$STATUS" -eq 0 ] || exit "$STATUS"
    {
        printf '%(%Y-%m-%d)T, %s, %s\n' -1 "$(processor_name)" "$(gcc --version | head -n 1)"
        report_times build/cost/times
    } | tee "$LOGS/build-cost.txt"
}
