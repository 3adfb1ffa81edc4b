//! Finds the library, in FLASHATTN_LIB_DIR or by pkg-config, or builds it where the feature `source`
//! says so. Crates that depend on this one read its folder in DEP_FLASHATTN_LIBDIR.

use std::env;
use std::path::Path;
use std::process::Command;

fn main() {
    for name in ["FLASHATTN_LIB_DIR", "FLASHATTN_CMAKE_OPTIONS", "PKG_CONFIG_PATH", "DOCS_RS"] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    if env::var_os("DOCS_RS").is_some() {
        return; // docs.rs has no library, and links nothing
    }
    if cfg!(feature = "source") {
        return link("static", &build_source());
    }
    let folder = env::var("FLASHATTN_LIB_DIR").map(checked);
    link("dylib", &folder.unwrap_or_else(|_| pkg_config(env!("CARGO_PKG_VERSION"))));
}

/// Returns the folder if it has the library, wherever Cargo runs the linker and the program.
fn checked(folder: String) -> String {
    let path = Path::new(&folder);
    assert!(path.is_absolute(), "FLASHATTN_LIB_DIR is {folder:?}: not an absolute path");
    let library = path.join("libflashattn.so");
    assert!(library.exists(), "FLASHATTN_LIB_DIR is {folder:?}: there is no {library:?}");
    folder
}

fn link(kind: &str, folder: &str) {
    println!("cargo::rustc-link-lib={kind}=flashattn");
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
    let text = String::from_utf8(folder.expect("pkg-config ran before").stdout);
    text.expect("libdir is UTF-8").trim().to_string()
}

/// Builds the static library of the source tree that this crate lies in, without CUDA kernels, and
/// returns its folder.
fn build_source() -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    for folder in ["src", "kernels", "include", "cmake", "CMakeLists.txt"] {
        println!("cargo::rerun-if-changed={}", root.join(folder).display());
    }
    let folder = format!("{}/library", env::var("OUT_DIR").expect("cargo sets it"));
    let options = env::var("FLASHATTN_CMAKE_OPTIONS").unwrap_or_default();
    let jobs = env::var("NUM_JOBS").expect("cargo sets it");
    run(Command::new("cmake")
        .arg("-S")
        .arg(&root)
        .args(["-B", &folder, "-DCMAKE_BUILD_TYPE=Release", "-DFLASH_CUDA=OFF"])
        .args(options.split_whitespace()));
    run(Command::new("cmake").args([
        "--build",
        &folder,
        "--target",
        "flashattn_static",
        "--parallel",
        &jobs,
    ]));
    println!("cargo::rustc-link-lib=dylib=m");
    folder
}

fn run(command: &mut Command) {
    let status = command.status().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(status.success(), "{command:?}: {status}");
}
