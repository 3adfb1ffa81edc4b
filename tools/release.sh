# shellcheck shell=bash
# Makes what is published of the last commit: the source archive, and of that archive the Debian
# packages and the wheel, without CUDA kernels and, where nvcc is, with them. The same commit gives
# the same bytes again: every date is the commit's. tests/check_release.sh tries them on a bare Debian.

RELEASES=build/releases

pack_sources() {
    rm -rf "$RELEASES"
    mkdir -p "$RELEASES"
    cmake -P cmake/dist.cmake "$RELEASES"
}

# Builds in a folder of its own, because CPack packs what that holds.
pack_debian() { # folder of the packages, sources, [CMake option...]
    local folder=$1 sources=$2 built
    built=$PWD/$RELEASES/building
    shift 2
    rm -rf "$built"
    env -u CMAKE_C_COMPILER_LAUNCHER cmake -S "$sources" -B "$built" -G Ninja \
        -DCMAKE_C_COMPILER=gcc -DCMAKE_BUILD_TYPE=Release "$@"
    cmake --build "$built" --parallel "$JOBS"
    (cd "$built" && cpack -G DEB -B packages)
    cp "$built"/packages/*.deb "$folder"
    rm -rf "$built"
}

# Makes packages and a wheel.
pack_binaries() { # folder, [CMake option...]
    local folder=$RELEASES/$1 sources
    sources=$(echo "$PWD/$RELEASES"/flashattn-*/)
    shift
    SOURCES=$sources build_portable_wheel "$folder" "$@"
    pack_debian "$folder" "$sources" "$@"
}

sum_release() {
    rm -rf "$RELEASES"/flashattn-*/
    local files
    mapfile -t files < <(cd "$RELEASES" && find . -type f -printf '%P\n' | LC_ALL=C sort)
    (cd "$RELEASES" && sha256sum "${files[@]}" >SHA256SUMS)
}

run_part() { # label, command...
    run_logged "$1" "$LOGS/release-${1// /-}.log" "${@:2}"
    [ "$STATUS" -eq 0 ] || exit "$STATUS"
}

release() { # -DNAME=VALUE...
    local option options=() cuda=AUTO
    wheel_settings "$@" >/dev/null
    install_packages "${TEST_NEEDS[@]}"
    install_requirements tools/requirements.txt
    SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
    export SOURCE_DATE_EPOCH
    [ -z "$(git status --porcelain)" ] || echo "of the last commit: changes since are not in it"
    run_part "source archive" pack_sources
    for option in "$@"; do
        [[ $option == -DFLASH_CUDA=* ]] && cuda=${option#*=} || options+=("$option")
    done
    run_part "without CUDA" pack_binaries cpu -DFLASH_CUDA=OFF "${options[@]}"
    if [ "$cuda" != OFF ] && command -v nvcc >/dev/null; then
        run_part "with CUDA" pack_binaries cuda -DFLASH_CUDA=ON "${options[@]}"
    fi
    run_part "sums" sum_release
    cat "$RELEASES/SHA256SUMS"
}
