//! Slices with a shape [batch, seqlen, n_heads, d_head] and strides. A ragged batch, which has its
//! sequences one after the other, has a batch axis of length 1, and a pool of pages has pages there.

use std::ffi::c_void;

use crate::element::Element;
use crate::error::{Error, Result};
use flashattn_sys as sys;

/// Elements that a call reads. The innermost axis is contiguous.
#[derive(Clone, Copy, Debug)]
pub struct Tensor<'a, T> {
    data: &'a [T],
    layout: Layout,
}

/// Elements that a call writes. No two of them lie in one place.
#[derive(Debug)]
pub struct TensorMut<'a, T> {
    data: &'a mut [T],
    layout: Layout,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub shape: [usize; 4],
    strides: [usize; 3],
}

impl<'a, T: Element> Tensor<'a, T> {
    /// Takes a contiguous slice of as many elements as the shape has.
    pub fn new(data: &'a [T], shape: [usize; 4]) -> Result<Self> {
        Ok(Tensor { layout: Layout::contiguous(data.len(), shape)?, data })
    }

    /// Takes a slice in which batch entries, tokens and heads are so many elements apart. A stride
    /// of 0 repeats the tensor along its axis.
    pub fn strided(data: &'a [T], shape: [usize; 4], strides: [usize; 3]) -> Result<Self> {
        Ok(Tensor { layout: Layout::within(data.len(), shape, strides)?, data })
    }

    pub fn shape(&self) -> [usize; 4] {
        self.layout.shape
    }

    pub(crate) fn repeats(&self) -> bool {
        self.layout.axes().any(|(length, stride)| length > 1 && stride == 0)
    }

    pub(crate) fn c_tensor(self) -> sys::flash_tensor_t {
        self.layout.c_tensor(self.data.as_ptr() as *mut c_void, T::DTYPE)
    }
}

impl<'a, T: Element> TensorMut<'a, T> {
    /// Takes a contiguous slice of as many elements as the shape has.
    pub fn new(data: &'a mut [T], shape: [usize; 4]) -> Result<Self> {
        Ok(TensorMut { layout: Layout::contiguous(data.len(), shape)?, data })
    }

    /// Takes a slice in which batch entries, tokens and heads are so many elements apart.
    pub fn strided(data: &'a mut [T], shape: [usize; 4], strides: [usize; 3]) -> Result<Self> {
        let layout = Layout::within(data.len(), shape, strides)?;
        layout.check_apart()?;
        Ok(TensorMut { layout, data })
    }

    pub fn shape(&self) -> [usize; 4] {
        self.layout.shape
    }

    pub(crate) fn c_tensor(&mut self) -> sys::flash_tensor_t {
        self.layout.c_tensor(self.data.as_mut_ptr().cast(), T::DTYPE)
    }
}

impl Layout {
    fn contiguous(len: usize, shape: [usize; 4]) -> Result<Self> {
        let [_, seqlen, n_heads, d_head] = shape;
        let of_token = n_heads.saturating_mul(d_head);
        let strides = [seqlen.saturating_mul(of_token), of_token, d_head];
        let layout = Layout::within(len, shape, strides)?;
        if shape.iter().fold(1, |size: usize, &length| size.saturating_mul(length)) != len {
            return Err(Error::invalid(format!(
                "a slice of {len} elements has the shape {shape:?}"
            )));
        }
        Ok(layout)
    }

    /// Checks that every element lies in the slice.
    fn within(len: usize, shape: [usize; 4], strides: [usize; 3]) -> Result<Self> {
        let layout = Layout { shape, strides };
        let end = layout.end();
        if end.is_some_and(|end| end <= len) {
            return Ok(layout);
        }
        Err(Error::invalid(format!(
            "a slice of {len} elements has the shape {shape:?} with strides {strides:?}"
        )))
    }

    /// Returns the place behind the last element, unless no number holds it.
    fn end(&self) -> Option<usize> {
        if self.shape.contains(&0) {
            return Some(0);
        }
        self.axes().try_fold(self.shape[3], |end, (length, stride)| {
            end.checked_add((length - 1).checked_mul(stride)?)
        })
    }

    /// Checks that no two elements lie in one place: each axis steps over what is inside of it.
    fn check_apart(&self) -> Result<()> {
        if self.shape.contains(&0) {
            return Ok(()); // there are no elements, and strides may be any numbers
        }
        let mut axes: Vec<_> = self.axes().filter(|&(length, _)| length > 1).collect();
        axes.sort_by_key(|&(_, stride)| stride);
        let mut inside = self.shape[3];
        for (length, stride) in axes {
            if stride < inside {
                let (shape, strides) = (self.shape, self.strides);
                return Err(Error::invalid(format!(
                    "elements to write overlap: shape {shape:?}, strides {strides:?}"
                )));
            }
            inside += (length - 1) * stride;
        }
        Ok(())
    }

    fn axes(&self) -> impl Iterator<Item = (usize, usize)> {
        let (shape, strides) = (self.shape, self.strides);
        (0..3).map(move |axis| (shape[axis], strides[axis]))
    }

    fn c_tensor(self, data: *mut c_void, dtype: i32) -> sys::flash_tensor_t {
        let [stride_batch, stride_seq, stride_head] = self.strides.map(|stride| stride as i64);
        sys::flash_tensor_t {
            data,
            stride_batch,
            stride_seq,
            stride_head,
            dtype,
            ..sys::flash_tensor_t::INIT
        }
    }
}
