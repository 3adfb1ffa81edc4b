//! Element types. Those of 16 and 8 bits are bits alone: other crates, such as `half`, convert them.

use flashattn_sys as sys;

/// A type that K and V may have.
///
/// # Safety
/// It has the size and the bits of `sys::FLASH_DTYPE_...` that `DTYPE` is, and any bits are a value.
pub unsafe trait Element: Copy {
    const DTYPE: i32;
}

/// A type that Q and O may have.
pub trait Query: Element {}

/// IEEE 754 binary16, as bits.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct F16(pub u16);

/// bfloat16, the upper half of a binary32, as bits.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BF16(pub u16);

/// e4m3 of OCP's OFP8, without infinity, as bits. Only of K and V.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct E4M3(pub u8);

unsafe impl Element for f32 {
    const DTYPE: i32 = sys::FLASH_DTYPE_FP32;
}
unsafe impl Element for F16 {
    const DTYPE: i32 = sys::FLASH_DTYPE_FP16;
}
unsafe impl Element for BF16 {
    const DTYPE: i32 = sys::FLASH_DTYPE_BF16;
}
unsafe impl Element for E4M3 {
    const DTYPE: i32 = sys::FLASH_DTYPE_E4M3;
}
impl Query for f32 {}
impl Query for F16 {}
impl Query for BF16 {}
