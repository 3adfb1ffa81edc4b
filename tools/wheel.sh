# shellcheck shell=bash
# Makes a wheel that can be given to others: it runs on every Linux with glibc 2.28 or newer, as
# Debian 10, Ubuntu 20.04 and RHEL 8 have it, wherever it was built. For that the library is compiled
# by zig cc, which brings the symbols of any glibc, and auditwheel checks the result and names it.

WHEEL_GLIBC=2.28

# Prints the options of CMake, -DNAME=VALUE, as the wheel's builder takes them.
wheel_settings() { # -DNAME=VALUE...
    local option
    for option in "$@"; do
        [[ $option == -D*=* ]] || refuse "wheel takes options of CMake, -DNAME=VALUE, not '$option'"
        printf -- '--config-setting=cmake.define.%s\n' "${option#-D}"
    done
}

zig_cc() {
    echo "$("$PYTHON" -c 'import ziglang; print(ziglang.__path__[0])')/zig cc" \
        "-target $(uname -m)-linux-gnu.$WHEEL_GLIBC"
}

# Builds the wheel into a folder of its own, which is emptied first, of the sources in SOURCES (default:
# this checkout).
build_portable_wheel() { # folder, -DNAME=VALUE...
    local folder=$1 settings
    shift
    mapfile -t settings < <(wheel_settings "$@")
    rm -rf "$folder"
    CC=$(zig_cc) LDFLAGS=-s env -u CMAKE_C_COMPILER_LAUNCHER "$PYTHON" -m build --wheel \
        --no-isolation --outdir "$folder/built" "${settings[@]}" "${SOURCES:-.}"
    PATH=$VENV/bin:$PATH auditwheel repair --plat "manylinux_${WHEEL_GLIBC/./_}_$(uname -m)" \
        --wheel-dir "$folder" "$folder"/built/*.whl
    rm -r "$folder/built"
}

wheel() { # -DNAME=VALUE...
    wheel_settings "$@" >/dev/null
    install_packages "${DEMO_NEEDS[@]}"
    install_requirements tools/requirements.txt
    run_logged "wheel" "$LOGS/wheel.log" build_portable_wheel build/wheelhouse "$@"
    [ "$STATUS" -eq 0 ] || exit "$STATUS"
    ls build/wheelhouse/*.whl
}
