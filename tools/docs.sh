# shellcheck shell=bash
# Builds a site of the guides and the references of the APIs: C and C++ from the headers, which
# doxygen reads, Python from the docstrings. It needs neither the library nor torch, and no network.

build_site() {
    rm -rf build/docs build/docs-headers build/docs-pages
    mkdir -p build/docs-headers
    doxygen docs/reference/Doxyfile
    "$PYTHON" -m sphinx -q -W --keep-going -j auto -c docs/reference -d build/docs-pages -b html \
        . build/docs
    cp build/docs/README.html build/docs/index.html
    find build/docs -name '*.html' -exec "$PYTHON" tools/check_links.py {} +
}

docs() {
    install_packages "${DOCS_NEEDS[@]}"
    install_requirements docs/requirements.txt
    run_logged "site" "$LOGS/docs.log" build_site
    [ "$STATUS" -eq 0 ] || exit "$STATUS"
    echo "build/docs/index.html"
}
