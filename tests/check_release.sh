#!/bin/bash
# Tries what `./dev release` made on a bare Debian: the sums, the source archive's build, the Debian
# packages with a program that uses them, and the wheel.
#
# usage: tests/check_release.sh [--kernels SELECTION] [OPTION of fresh_machine.sh...]
#
#   --kernels SELECTION   which kernels to build of the archive; default: ship
#
# It needs what tests/fresh_machine.sh needs, which makes the Debian.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

KERNELS=ship
if [ "${1:-}" = --kernels ]; then
    KERNELS=$2
    shift 2
fi
[ -e build/releases/SHA256SUMS ] || {
    echo "check_release.sh: there is nothing in build/releases: run ./dev release" >&2
    exit 2
}

# fresh_machine.sh copies the last commit alone; what was made of it is copied into its build/.
WORK=$(mktemp -d "${TMPDIR:-/tmp}/check-release.XXXXXX")
OPTIONS=()
while [ $# -gt 0 ]; do
    case $1 in
    --work) rmdir "$WORK" && WORK=$2 && shift ;;
    *) OPTIONS+=("$1") ;;
    esac
    shift
done
tests/fresh_machine.sh --work "$WORK" --keep true
RELEASES=$WORK/root/root/flashattn/build/releases
rm -rf "$RELEASES"
mkdir -p "${RELEASES%/*}"
cp -r build/releases "$RELEASES"

INSTALL='DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends'
# shellcheck disable=SC2016  # the shell in that Debian expands them
COMMANDS=(
    'cd build/releases && sha256sum --check SHA256SUMS'
    'apt-get update'
    "$INSTALL gcc libc6-dev cmake ninja-build pkg-config python3-venv"
    'rm -rf /tmp/sources && mkdir /tmp/sources && tar xf build/releases/flashattn-*.tar.gz -C /tmp/sources'
    "cmake -S /tmp/sources/* -B /tmp/sources/build -G Ninja -DCMAKE_BUILD_TYPE=Release \
        -DFLASH_KERNELS='$KERNELS'"
    'cmake --build /tmp/sources/build && cmake --install /tmp/sources/build --prefix /tmp/sources/installed'
    'for folder in build/releases/*/; do
        apt-get install -y ./$folder*.deb &&
        cc tests/consumers/main.c -o /tmp/program $(pkg-config --cflags --libs flashattn) &&
        /tmp/program && apt-get purge -y "libflashattn*" || exit; done'
    'for folder in build/releases/*/; do
        rm -rf /tmp/venv && python3 -m venv /tmp/venv && /tmp/venv/bin/pip install --quiet "$(echo $folder*.whl)[cli]" &&
        (cd /tmp && venv/bin/python -m flashattn check) || exit; done'
)
exec tests/fresh_machine.sh --work "$WORK" "${OPTIONS[@]}" "${COMMANDS[@]//$'\n'/ }"
