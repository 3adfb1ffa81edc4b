# shellcheck shell=bash
# Sets up what a command needs: Debian packages, and Python packages in a virtual environment.

# What a command needs, as probe:package. A probe is a program, or @ and a case of has().
BUILD_NEEDS=(gcc:gcc @libc:libc6-dev cmake:cmake ninja:ninja-build python3:python3)
DEMO_NEEDS=("${BUILD_NEEDS[@]}" @venv:python3-venv)
TEST_NEEDS=("${DEMO_NEEDS[@]}" g++:g++ clang:clang @fuzzer:libclang-rt-dev @cmocka:libcmocka-dev
    abidiff:abigail-tools pkg-config:pkg-config dpkg-shlibdeps:dpkg-dev file:file)
DOCS_NEEDS=("${DEMO_NEEDS[@]}" doxygen:doxygen)
BENCH_NEEDS=("${DEMO_NEEDS[@]}" g++:g++ @benchmark:libbenchmark-dev)

compiles() { # compiler... <<< source
    "$@" -o /dev/null - >/dev/null 2>&1
}

has() { # probe
    case $1 in
    @libc) compiles gcc -x c <<<'#include <stdio.h>
        int main(void) { return 0; }' ;;
    @venv) python3 -c 'import ensurepip, venv' 2>/dev/null ;;
    @cmocka) compiles gcc -x c -c -include stdarg.h -include stddef.h -include stdint.h \
        -include setjmp.h <<<'#include <cmocka.h>' ;;
    @fuzzer) compiles clang -x c -fsanitize=fuzzer,address <<<'#include <stddef.h>
        int LLVMFuzzerTestOneInput(const char *d, size_t n) { return d == 0 && n; }' ;;
    @benchmark) compiles g++ -x c++ -c <<<'#include <benchmark/benchmark.h>' ;;
    *) command -v "$1" >/dev/null ;;
    esac
}

# Prints the packages that are missing, one per line.
missing_packages() { # need...
    local need
    for need in "$@"; do
        has "${need%%:*}" || echo "${need#*:}"
    done
}

# Runs a command as root, if that takes no password.
as_root() { # command...
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    else
        sudo -n "$@"
    fi
}

can_install() {
    command -v apt-get >/dev/null && as_root true 2>/dev/null
}

# Prints the command that installs packages, for a person to paste: with sudo for those who may use
# it, else with root's password. (`su -`, because a user's PATH lacks programs that dpkg runs.)
install_command() { # package...
    local install="apt-get install -y --no-install-recommends $*"
    if command -v sudo >/dev/null && id -nG | grep -qwE 'sudo|admin|wheel'; then
        echo "sudo apt-get update && sudo $install"
    else
        echo "su - -c 'apt-get update && $install'"
    fi
}

apt_install() { # package...
    as_root apt-get update &&
        as_root env DEBIAN_FRONTEND=noninteractive \
            apt-get install -y --no-install-recommends "$@"
}

# Installs all that is missing; if that is not possible, says how and ends the script.
install_packages() { # need...
    local missing
    mapfile -t missing < <(missing_packages "$@")
    [ ${#missing[@]} -gt 0 ] || return 0
    if ! command -v apt-get >/dev/null; then
        echo "Missing, under their Debian names: ${missing[*]}" >&2
        exit 1
    fi
    if ! can_install; then
        printf 'Packages are missing. Install them, then run this again:\n\n  %s\n\n' \
            "$(install_command "${missing[@]}")" >&2
        exit 1
    fi
    echo "installing ${missing[*]}"
    run_logged "Debian packages" "$LOGS/packages.log" apt_install "${missing[@]}"
    return "$STATUS"
}

make_venv() {
    mkdir -p build
    "$PYTHON" -c 'import pip' 2>/dev/null || python3 -m venv --clear "$VENV"
}

has_gpu() {
    nvidia-smi -L >/dev/null 2>&1
}

# Names the file that has the text of a list when all of the list is installed.
installed_list() { # list
    echo "$VENV/$(tr / - <<<"$1")"
}

is_installed() { # list
    "$PYTHON" -c '' 2>/dev/null && cmp -s "$1" "$(installed_list "$1")"
}

# Installs a list of Python packages. Python compiles what is used of them when it is used.
pip_install() { # list [pip option...]
    make_venv &&
        "$PYTHON" -m pip install --quiet --no-compile --disable-pip-version-check "${@:2}" \
            -r "$1" &&
        cp "$1" "$(installed_list "$1")"
}

install_requirements() { # list [pip option...]
    ! is_installed "$1" || return 0
    run_logged "Python packages of $1" "$LOGS/python-packages.log" pip_install "$@"
    return "$STATUS"
}

install_demo_requirements() { # demo
    install_requirements "examples/$1/requirements.txt" --no-deps
}

# torch is too large to install for a demo. If the system's Python has it, the virtual environment
# sees that Python's packages after its own. (--system-site-packages would miss those of a Python
# that is a virtual environment itself.)
lend_torch() {
    python3 -c 'import importlib.util as u; u.find_spec("torch") or exit(1)' || return 0
    python3 -c 'import sys; print(*(p for p in sys.path if p.endswith("-packages")), sep="\n")' \
        >"$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/lent.pth"
}

# Prints the packages of a list that the system's Python does not have, in one line.
missing_requirements() { # list
    python3 - "$1" <<'END'
import re, sys
from importlib.util import find_spec

def is_missing(requirement):
    return find_spec(re.match(r"[\w-]+", requirement)[0].replace("-", "_")) is None

lines = (line.strip() for line in open(sys.argv[1]))
print(*(line for line in lines if line and line[0] != "#" and is_missing(line)))
END
}

# Says whether the demo can run with the system's Python and its packages. With a model of the
# user's own, the demo itself says what it lacks.
system_python_serves() { # demo, argument of it...
    [ -z "$(missing_packages "${BUILD_NEEDS[@]}")" ] &&
        { [[ " ${*:2}" == *" --model"* ]] ||
            [ -z "$(missing_requirements "examples/$1/requirements.txt")" ]; }
}

# Makes a virtual environment; if it cannot be made or filled, the system's Python serves.
set_up_demo() { # demo, argument of it...
    PART='[1/3] '
    if has @venv || can_install || ! system_python_serves "$@"; then
        if (install_packages "${DEMO_NEEDS[@]}"); then
            PART='[2/3] '
            if install_demo_requirements "$1"; then
                lend_torch
                return
            fi
        fi
        system_python_serves "$@" || exit 1
    fi
    PYTHON=python3
    echo "the demo runs with the system's Python and its packages"
}
