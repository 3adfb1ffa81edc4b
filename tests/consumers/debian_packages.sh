#!/bin/bash
# Installs the Debian packages of a build in a minimal Debian, builds and runs a C program with them
# there, by pkg-config and by CMake, and takes them out again: nothing of them may be left.
#
# usage: tests/consumers/debian_packages.sh BUILD [FOLDER]
#
#   BUILD    a folder with a build of the library, whose packages cpack makes
#   FOLDER   where the Debian is made, and stays for the next time; default: a new one, which goes
#
# It needs what tests/fresh_machine.sh needs, which makes the Debian.
set -euo pipefail

[ $# -eq 1 ] || [ $# -eq 2 ] || {
    sed -n 's/^# \{0,1\}//; /^usage:/,/^It needs/p' "${BASH_SOURCE[0]}" >&2
    exit 2
}
BUILD=$1
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
KEEP=()
[ $# -eq 1 ] || KEEP=(--keep)
FOLDER=${2:-$(mktemp -d "${TMPDIR:-/tmp}/debian-packages.XXXXXX")}
PACKAGES=$FOLDER/root/root/flashattn/build/packages  # in the checkout of the minimal Debian

RUNTIME='./build/packages/libflashattn[0-9]*.deb'
DEVELOPMENT='./build/packages/libflashattn-dev_*.deb'
INSTALL='DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends'

"$HERE/../fresh_machine.sh" --work "$FOLDER" --keep true
rm -rf "$PACKAGES"
(cd "$BUILD" && cpack -G DEB -B "$PACKAGES")

# shellcheck disable=SC2016  # the shell in that Debian expands them
COMMANDS=(
    'apt-get update'
    "$INSTALL $RUNTIME $DEVELOPMENT gcc libc6-dev pkg-config cmake make"
    'cc -Wall -Wextra -Werror tests/consumers/main.c -o /tmp/program
        $(pkg-config --cflags --libs flashattn)'
    'cmake -S tests/consumers/find_package -B /tmp/consumer && cmake --build /tmp/consumer'
    'apt-get purge -y libflashattn-dev'  # programs run without it
    '/tmp/program && /tmp/consumer/consumer'
    'dpkg --verify $(dpkg-query -f "\${Package}\n" -W "libflashattn[0-9]*")'
    'apt-get purge -y "libflashattn[0-9]*"'
    '! find / -xdev -path /root -prune -o -path /tmp -prune -o -name "*flashattn*" -print | grep .'
)
"$HERE/../fresh_machine.sh" --work "$FOLDER" "${KEEP[@]}" "${COMMANDS[@]//$'\n'/ }"
