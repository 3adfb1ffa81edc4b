//! Attention, O = softmax(scale * Q K^T, masked) V, exactly and without the matrix of scores in
//! memory, by libflashattn.
//!
//! ```
//! use flashattn::{Forward, Tensor, TensorMut, Workspace};
//!
//! let q = vec![1.0_f32; 2 * 5 * 4 * 8]; // [batch, seqlen_q, n_heads, d_head]
//! let k = vec![1.0_f32; 2 * 7 * 2 * 8]; // [batch, seqlen_k, n_heads_kv, d_head]
//! let v = vec![3.0_f32; 2 * 7 * 2 * 8];
//! let mut o = vec![0.0_f32; q.len()];
//!
//! let forward = Forward::new(
//!     Tensor::new(&q, [2, 5, 4, 8])?,
//!     Tensor::new(&k, [2, 7, 2, 8])?,
//!     Tensor::new(&v, [2, 7, 2, 8])?,
//! )
//! .causal();
//! let mut workspace = Workspace::new(); // is kept from call to call
//! forward.run(&mut workspace, TensorMut::new(&mut o, [2, 5, 4, 8])?, None)?;
//! assert!((o[0] - 3.0).abs() < 1e-6); // a mean of threes
//! # Ok::<(), flashattn::Error>(())
//! ```
//!
//! All memory is the caller's and in memory of the host: a call runs on the CPU, in the library's
//! own threads, and has returned when O is complete. CUDA devices, masks and whatever else is not
//! here are in [`sys`], the C API.

mod backward;
mod element;
mod error;
mod forward;
mod tensor;

pub use backward::Gradients;
pub use element::{Element, Query, BF16, E4M3, F16};
pub use error::{Error, Result};
pub use flashattn_sys as sys;
pub use forward::{Forward, Pages, Workspace};
pub use tensor::{Tensor, TensorMut};

use std::ffi::CStr;

/// Returns the version of the loaded library, as in "0.2.0".
pub fn version() -> String {
    let text = unsafe { CStr::from_ptr(sys::flash_version()) };
    text.to_string_lossy().into_owned()
}

/// Sets the number of threads that later calls use, 1 to 4096, or 0 for the default.
pub fn set_num_threads(n_threads: i32) -> Result<()> {
    Error::check(unsafe { sys::flash_set_num_threads(n_threads) })
}

/// Returns the number of threads that a call started now would use at most.
pub fn num_threads() -> i32 {
    unsafe { sys::flash_num_threads() }
}

/// The programs of the guide, which are tests.
#[cfg(doctest)]
#[doc = include_str!("../../../../docs/guides/rust.md")]
pub struct Guide;
