//! Finds the library: in FLASHATTN_LIB_DIR, or by pkg-config. Crates that depend on this one read
//! its folder in DEP_FLASHATTN_LIBDIR.

use std::env;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-env-changed=FLASHATTN_LIB_DIR");
    println!("cargo::rerun-if-env-changed=PKG_CONFIG_PATH");
    println!("cargo::rerun-if-env-changed=DOCS_RS");
    if env::var_os("DOCS_RS").is_some() {
        return; // docs.rs has no library, and links nothing
    }
    println!("cargo::rustc-link-lib=dylib=flashattn");
    match env::var("FLASHATTN_LIB_DIR") {
        Ok(folder) => link_from(&folder),
        Err(_) => pkg_config(env!("CARGO_PKG_VERSION")).lines().for_each(link_from),
    }
}

fn link_from(folder: &str) {
    println!("cargo::rustc-link-search=native={folder}");
    println!("cargo::metadata=libdir={folder}");
}

/// Returns the folder of an installed library of this version or a newer one.
fn pkg_config(version: &str) -> String {
    let query = format!("flashattn >= {version}");
    let found = Command::new("pkg-config")
        .args(["--print-errors", "--exists", &query])
        .output()
        .unwrap_or_else(|error| panic!("set FLASHATTN_LIB_DIR: pkg-config cannot run: {error}"));
    if !found.status.success() {
        let words = String::from_utf8_lossy(&found.stderr);
        panic!("set FLASHATTN_LIB_DIR or PKG_CONFIG_PATH: pkg-config says: {words}");
    }
    let folder = Command::new("pkg-config").args(["--variable=libdir", "flashattn"]).output();
    String::from_utf8(folder.expect("pkg-config ran before").stdout).expect("libdir is UTF-8")
}
