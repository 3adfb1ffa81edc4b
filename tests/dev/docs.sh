# shellcheck shell=bash
# Builds the reference of the APIs: C and C++ by doxygen from the headers, Python by pdoc from the
# docstrings. Neither needs the library, nor torch.

build_reference() {
    rm -rf build/docs
    mkdir -p build/docs
    doxygen docs/reference/Doxyfile
    PYTHONPATH=$BINDINGS "$PYTHON" docs/reference/build_python.py build/docs/python
    cp docs/reference/index.html build/docs
    find build/docs -name '*.html' -exec "$PYTHON" tests/dev/check_links.py {} +
}

docs() {
    install_packages "${DOCS_NEEDS[@]}"
    install_requirements docs/requirements.txt
    run_logged "reference" "$LOGS/docs.log" build_reference
    [ "$STATUS" -eq 0 ] || exit "$STATUS"
    echo "build/docs/index.html"
}
