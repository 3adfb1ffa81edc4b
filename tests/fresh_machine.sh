#!/bin/bash
# Runs ./dev on a fresh machine: a minimal Debian that debootstrap makes in a folder, with nothing
# of this machine's but its processors. It has no nvcc, no compiler and no Python.
#
# usage: tests/fresh_machine.sh [--work FOLDER] [--keep] [COMMAND...]
#
#   COMMAND         a command line to run in the checkout; default: './dev demo' './dev test'
#   --work FOLDER   where the Debian and the checkout go, 5 GB; default: a new folder in TMPDIR.
#                   A FOLDER that an earlier run kept is used again as it is, but for the checkout,
#                   of which build/ alone stays.
#   --keep          leave the Debian there at the end, to look into it or to use it again
#
# The checkout is the last commit; changes since are not in it. Packages come from the mirror that
# this machine's apt uses, and from where this machine's pip takes them: its settings, and the
# files that they name, are copied. It needs root (for chroot and mount) and debootstrap.
# The exit status is that of the first command that fails.
set -euo pipefail

SUITE=bookworm
CHECKOUT=/root/flashattn
CERTIFICATES=/root/pip-certificates.crt
REPOSITORY=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

usage() {
    sed -n 's/^# \{0,1\}//; /^usage:/,/^The exit status/p' "${BASH_SOURCE[0]}"
}

die() { # message
    echo "fresh_machine.sh: $1" >&2
    exit 2
}

WORK='' KEEP=false
parse_arguments() {
    while [ $# -gt 0 ]; do
        case $1 in
        --work)
            [ $# -ge 2 ] || die "--work needs a folder"
            WORK=$2
            shift
            ;;
        --keep) KEEP=true ;;
        -h | --help) usage && exit ;;
        -*) usage >&2 && exit 2 ;;
        *) break ;;
        esac
        shift
    done
    COMMANDS=("$@")
    [ $# -gt 0 ] || COMMANDS=('./dev demo' './dev test')
}

check_machine() {
    [ "$(id -u)" -eq 0 ] || die "chroot and mount need root: run it as root or with sudo"
    command -v debootstrap >/dev/null ||
        die "debootstrap is missing: apt-get update && apt-get install -y debootstrap"
}

# Prints the address from which apt takes the suite's packages, or nothing if apt does not know it.
apt_mirror() {
    ! command -v apt-get >/dev/null ||
        apt-get indextargets --format "\$(REPO_URI)" 'Created-By: Packages' "Codename: $SUITE" |
        head -n 1
}

make_root() {
    [ ! -e "$ROOT/etc/debian_version" ] || return 0
    local mirror options=(--variant=minbase)
    mirror=$(apt_mirror)
    echo "making a minimal Debian in $ROOT"
    # https needs certificates that a minimal Debian lacks.
    [[ $mirror != https:* ]] || options+=(--include=ca-certificates)
    debootstrap "${options[@]}" "$SUITE" "$ROOT" ${mirror:+"$mirror"} >"$ROOT.log" 2>&1 || {
        cat "$ROOT.log"
        die "debootstrap failed"
    }
}

# Copies what the network needs to work as it does outside: names, proxies, certificates, pip's
# settings.
copy_settings() {
    local path
    cp -L /etc/resolv.conf /etc/hosts "$ROOT/etc/"
    if command -v apt-config >/dev/null; then
        apt-config dump Acquire::http::Proxy Acquire::https::Proxy \
            >"$ROOT/etc/apt/apt.conf.d/90-outside"
    fi
    for path in /etc/pip.conf ~/.config/pip/pip.conf ~/.pip/pip.conf; do
        [ ! -e "$path" ] || cp -L --parents "$path" "$ROOT"
    done
    { python3 -m pip config list 2>/dev/null || true; } | sed -n "s/^[^=]*='\(\/.*\)'$/\1/p" |
        while read -r path; do
            [ ! -e "$path" ] || cp -rL --parents "$path" "$ROOT"
        done
    path=${PIP_CERT:-$(python3 -m pip config get global.cert 2>/dev/null || true)}
    [ -z "$path" ] || cp -L "$path" "$ROOT$CERTIFICATES"
}

# Copies the last commit, and keeps the build/ of an earlier run.
copy_checkout() {
    local folder=$ROOT$CHECKOUT
    mkdir -p "$folder"
    find "$folder" -mindepth 1 -maxdepth 1 ! -name build -exec rm -rf {} +
    git -C "$REPOSITORY" -c safe.directory='*' archive HEAD | tar -x -C "$folder"
}

mount_systems() {
    mount -t proc proc "$ROOT/proc"
    mount -t sysfs -o ro sysfs "$ROOT/sys"
    mkdir -p "$ROOT/dev/shm"
    mount -t tmpfs tmpfs "$ROOT/dev/shm"
}

# Undoes mount_systems, and removes the folder only if nothing is mounted in it any more.
clean_up() {
    local folder mounted=false
    for folder in dev/shm sys proc; do
        ! mountpoint -q "$ROOT/$folder" || umount "$ROOT/$folder" ||
            umount -l "$ROOT/$folder" || mounted=true
    done
    if $KEEP || $mounted; then
        echo "left in $ROOT"
    else
        rm -rf --one-file-system "$ROOT" "$ROOT.log"
        rmdir --ignore-fail-on-non-empty "${ROOT%/*}"
    fi
}

# Runs a command with no variable of this machine except pip's and the proxies'.
run_inside() { # command line
    local outside
    mapfile -t outside < <(env | grep -E '^(PIP_[A-Z_]*|(https?|no)_proxy|TERM)=' || true)
    # The package ca-certificates does not overwrite certificates there.
    [ ! -e "$ROOT$CERTIFICATES" ] || outside+=("PIP_CERT=$CERTIFICATES")
    echo "--- $1"
    env -i HOME=/root LANG=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        "${outside[@]}" chroot "$ROOT" /bin/bash -c "cd $CHECKOUT && $1"
}

main() {
    local command
    parse_arguments "$@"
    check_machine
    WORK=${WORK:-$(mktemp -d "${TMPDIR:-/tmp}/fresh-machine.XXXXXX")}
    mkdir -p "$WORK"
    ROOT=$(cd "$WORK" && pwd)/root
    ! mountpoint -q "$ROOT/proc" || die "another run is using $ROOT"
    trap clean_up EXIT
    trap 'exit 130' INT TERM HUP
    make_root
    copy_settings
    copy_checkout
    mount_systems
    for command in "${COMMANDS[@]}"; do
        run_inside "$command"
    done
}

main "$@"
