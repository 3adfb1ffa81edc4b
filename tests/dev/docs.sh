# shellcheck shell=bash
# Builds the reference of the APIs: C and C++ by doxygen from the headers, Python by pdoc from the
# docstrings. Neither needs the library.

build_reference() {
    rm -rf build/docs
    mkdir -p build/docs
    doxygen docs/reference/Doxyfile
    PYTHONPATH=$BINDINGS "$PYTHON" -m pdoc --template-directory docs/reference/pdoc \
        --output-directory build/docs/python flashattn '!flashattn.cli'
    cp docs/reference/index.html build/docs
    "$PYTHON" tests/dev/check_links.py build/docs/*.html build/docs/c/*.html \
        build/docs/python/flashattn.html
}

docs() {
    install_packages "${DOCS_NEEDS[@]}"
    install_requirements docs/requirements.txt
    run_logged "reference" "$LOGS/docs.log" build_reference
    [ "$STATUS" -eq 0 ] || exit "$STATUS"
    echo "build/docs/index.html"
}
