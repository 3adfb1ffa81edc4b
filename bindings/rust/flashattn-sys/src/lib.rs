//! The C API of libflashattn: constants, structs and functions under the names of
//! `include/flashattn.h`, which is the manual. Structs have the value of their `..._INIT` macro as
//! `INIT`. The crate `flashattn` has a safe API on top.
//!
//! The layout of every struct is checked when the crate is compiled.
#![no_std]
#![allow(non_camel_case_types, non_snake_case)]

#[rustfmt::skip]
mod bindings;
pub use bindings::*;
