//! A call of attention.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr;

use crate::element::{Element, Query};
use crate::error::{Error, Result};
use crate::tensor::{Tensor, TensorMut};
use flashattn_sys as sys;

/// Memory that calls work in. It grows to what the largest of them asks for.
#[derive(Debug, Default)]
pub struct Workspace {
    memory: Vec<MaybeUninit<u8>>,
}

impl Workspace {
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns where the memory is, and how many bytes it has.
    pub(crate) fn reserve(&mut self, size: u64) -> Result<(*mut c_void, u64)> {
        let refused = || Error::out_of_memory(format!("a workspace of {size} bytes"));
        let size = usize::try_from(size).map_err(|_| refused())?;
        let more = size.saturating_sub(self.memory.len());
        self.memory.try_reserve_exact(more).map_err(|_| refused())?;
        self.memory.resize(self.memory.len() + more, MaybeUninit::uninit());
        Ok((self.memory.as_mut_ptr().cast(), self.memory.len() as u64))
    }
}

/// Where the keys of each sequence lie: K and V are pools [n_pages, page_size, n_heads_kv, d_head],
/// and row b of the table has the pages of sequence b, in order.
#[derive(Clone, Copy, Debug)]
pub struct Pages<'a> {
    /// [batch, pages_of_a_row]; what is beyond a sequence's length is not looked at.
    pub table: &'a [i32],
    pub pages_of_a_row: usize,
    /// [batch]: the keys of each sequence.
    pub lengths: &'a [i32],
}

/// The arguments of a call: Q, K, V and what is not the default. The header of the C API tells what
/// each means.
#[derive(Clone, Copy, Debug)]
pub struct Forward<'a, Q, K> {
    q: Tensor<'a, Q>,
    k: Tensor<'a, K>,
    v: Tensor<'a, K>,
    numbers: Numbers,
    sinks: Option<&'a [f32]>,
    seqused_k: Option<&'a [i32]>,
    ragged_q: Option<Ends<'a>>,
    ragged_k: Option<Ends<'a>>,
    pages: Option<Pages<'a>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Numbers {
    flags: u32,
    window: [i64; 2],
    softmax_scale: f32,
    softcap: f32,
    attention_chunk: i64,
    diagonal_offset: i64,
}

#[derive(Clone, Copy, Debug)]
struct Ends<'a> {
    cu_seqlens: &'a [i32],
    longest: usize,
}

impl<'a, Q: Query, K: Element> Forward<'a, Q, K> {
    /// Takes q [batch, seqlen_q, n_heads, d_head], k [batch, seqlen_k, n_heads_kv, d_head] and v
    /// as k, whose d_head may be another.
    pub fn new(q: Tensor<'a, Q>, k: Tensor<'a, K>, v: Tensor<'a, K>) -> Self {
        Forward {
            q,
            k,
            v,
            numbers: Numbers::default(),
            sinks: None,
            seqused_k: None,
            ragged_q: None,
            ragged_k: None,
            pages: None,
        }
    }

    /// Query i sees key j when j <= i + seqlen_k - seqlen_q.
    pub fn causal(mut self) -> Self {
        self.numbers.flags |= sys::FLASH_FLAG_CAUSAL;
        self
    }

    /// Keys that a query sees to each side of that diagonal; None: all.
    pub fn window(mut self, left: Option<usize>, right: Option<usize>) -> Self {
        self.numbers.flags |= sys::FLASH_FLAG_WINDOW;
        self.numbers.window = [left, right].map(|side| side.map_or(-1, clamped));
        self
    }

    /// The factor of scores, in place of 1 / sqrt(d_head). It must be positive.
    pub fn softmax_scale(mut self, scale: f32) -> Self {
        // To the C API 0 means the default, which was not asked for: NaN is refused.
        self.numbers.softmax_scale = if scale == 0.0 { f32::NAN } else { scale };
        self
    }

    /// Scores s become softcap * tanh(s / softcap); 0: none.
    pub fn softcap(mut self, softcap: f32) -> Self {
        self.numbers.softcap = softcap;
        self
    }

    /// Chunks of so many keys do not see each other; 0: none.
    pub fn attention_chunk(mut self, n_keys: usize) -> Self {
        self.numbers.attention_chunk = clamped(n_keys);
        self
    }

    /// The diagonal is shifted by so many keys: query i stands at key i + seqlen_k - seqlen_q +
    /// n_keys, and the causal order, the window and chunks count from there.
    pub fn diagonal_offset(mut self, n_keys: i64) -> Self {
        self.numbers.diagonal_offset = n_keys;
        self
    }

    /// [n_heads]: one more logit per query head in the softmax, without a value.
    pub fn sinks(mut self, sinks: &'a [f32]) -> Self {
        self.sinks = Some(sinks);
        self
    }

    /// [batch]: only the first so many keys of each sequence exist.
    pub fn seqused_k(mut self, lengths: &'a [i32]) -> Self {
        self.seqused_k = Some(lengths);
        self
    }

    /// Queries of a ragged batch: q is [1, tokens, n_heads, d_head], sequence b is its tokens
    /// cu_seqlens[b] up to cu_seqlens[b + 1], and no sequence is longer than `longest`.
    pub fn ragged_q(mut self, cu_seqlens: &'a [i32], longest: usize) -> Self {
        self.ragged_q = Some(Ends { cu_seqlens, longest });
        self
    }

    /// The same of k and v.
    pub fn ragged_k(mut self, cu_seqlens: &'a [i32], longest: usize) -> Self {
        self.ragged_k = Some(Ends { cu_seqlens, longest });
        self
    }

    pub fn pages(mut self, pages: Pages<'a>) -> Self {
        self.pages = Some(pages);
        self
    }

    /// Ids of the page table below 0 are holes: the keys of their pages count as positions, but no
    /// query sees them, and nothing is read for them.
    pub fn page_holes(mut self) -> Self {
        self.numbers.flags |= sys::FLASH_FLAG_PAGE_HOLES;
        self
    }

    /// Computes O, shaped as q with heads as wide as those of v, and, where it is given, LSE,
    /// [batch, n_heads, seqlen_q], of a ragged batch [n_heads, tokens]. Nothing is written where it
    /// fails.
    pub fn run<O: Query>(
        &self,
        workspace: &mut Workspace,
        mut o: TensorMut<'_, O>,
        lse: Option<&mut [f32]>,
    ) -> Result<()> {
        let [rows, tokens, n_heads, _] = self.q.shape();
        same("o", o.shape(), self.o_shape())?;
        let n_values = rows.saturating_mul(tokens).saturating_mul(n_heads);
        let mut args = self.args()?;
        let mut paging = sys::flash_paging_t::INIT;
        if let Some(pages) = &self.pages {
            self.set_pages(pages, &mut args, &mut paging)?;
            args.paging = &paging;
        }
        args.dtype = O::DTYPE;
        args.o = o.c_tensor();
        if let Some(lse) = lse {
            same("lse", lse.len(), n_values)?;
            args.lse = lse.as_mut_ptr();
        }
        launch(&mut args, workspace)
    }

    pub(crate) fn q_shape(&self) -> [usize; 4] {
        self.q.shape()
    }

    pub(crate) fn k_shape(&self) -> [usize; 4] {
        self.k.shape()
    }

    pub(crate) fn v_shape(&self) -> [usize; 4] {
        self.v.shape()
    }

    pub(crate) fn o_shape(&self) -> [usize; 4] {
        let [rows, tokens, n_heads, _] = self.q.shape();
        [rows, tokens, n_heads, self.v.shape()[3]]
    }

    pub(crate) fn has_pages(&self) -> bool {
        self.pages.is_some()
    }

    pub(crate) fn is_ragged(&self) -> bool {
        self.ragged_q.is_some()
    }

    pub(crate) fn args(&self) -> Result<sys::flash_forward_args_t> {
        let ([_, seqlen_q, n_heads, d_head], [_, seqlen_k, n_heads_kv, _]) =
            (self.q.shape(), self.k.shape());
        self.check_shapes()?;
        let mut args = sys::flash_forward_args_t {
            flags: self.numbers.flags,
            q: self.q.c_tensor(),
            k: self.k.c_tensor(),
            v: self.v.c_tensor(),
            batch: self.batch() as i64,
            seqlen_q: self.ragged_q.map_or(seqlen_q, |ends| ends.longest) as i64,
            seqlen_k: self.ragged_k.map_or(seqlen_k, |ends| ends.longest) as i64,
            n_heads: n_heads as i64,
            n_heads_kv: n_heads_kv as i64,
            d_head: d_head as i64,
            d_head_v: self.v.shape()[3] as i64,
            window_left: self.numbers.window[0],
            window_right: self.numbers.window[1],
            softmax_scale: self.numbers.softmax_scale,
            softcap: self.numbers.softcap,
            attention_chunk: self.numbers.attention_chunk,
            diagonal_offset: self.numbers.diagonal_offset,
            ..sys::flash_forward_args_t::INIT
        };
        if self.q.repeats() || self.k.repeats() || self.v.repeats() {
            args.flags |= sys::FLASH_FLAG_BROADCAST;
        }
        self.set_arrays(&mut args)?;
        Ok(args)
    }

    fn batch(&self) -> usize {
        match self.ragged_q {
            Some(ends) => ends.cu_seqlens.len().saturating_sub(1),
            None => self.q.shape()[0],
        }
    }

    fn check_shapes(&self) -> Result<()> {
        let (q, k, v) = (self.q.shape(), self.k.shape(), self.v.shape());
        same("v without its last axis", &v[..3], &k[..3])?;
        same("d_head of k", k[3], q[3])?;
        if v[3] == 0 && q[3] != 0 {
            return Err(Error::invalid("v has a d_head of 0: it must be at least 1".into()));
        }
        match (self.ragged_k, self.pages) {
            (Some(_), Some(_)) => Err(Error::invalid("ragged_k and pages are given".into())),
            (Some(_), None) => same("batch axis of ragged k", k[0], 1),
            (None, Some(_)) => Ok(()),
            (None, None) => same("batch of k", k[0], self.batch()),
        }
    }

    fn set_arrays(&self, args: &mut sys::flash_forward_args_t) -> Result<()> {
        let (batch, n_heads) = (self.batch(), self.q.shape()[2]);
        if let Some(sinks) = self.sinks {
            same("sinks", sinks.len(), n_heads)?;
            args.sinks = sinks.as_ptr();
        }
        if let Some(lengths) = self.seqused_k {
            same("seqused_k", lengths.len(), batch)?;
            args.seqused_k = lengths.as_ptr();
        }
        if let Some(ends) = self.ragged_q {
            same("batch axis of ragged q", self.q.shape()[0], 1)?;
            ends.check("cu_seqlens of q", batch, self.q.shape()[1])?;
            args.cu_seqlens_q = ends.cu_seqlens.as_ptr();
        }
        if let Some(ends) = self.ragged_k {
            ends.check("cu_seqlens of k", batch, self.k.shape()[1])?;
            args.cu_seqlens_k = ends.cu_seqlens.as_ptr();
        }
        Ok(())
    }

    fn set_pages(
        &self,
        pages: &Pages<'_>,
        args: &mut sys::flash_forward_args_t,
        paging: &mut sys::flash_paging_t,
    ) -> Result<()> {
        let (batch, [n_pages, page_size, ..]) = (self.batch(), self.k.shape());
        if self.seqused_k.is_some() {
            return Err(Error::invalid(
                "seqused_k and pages, which have lengths, are given".into(),
            ));
        }
        same("lengths of pages", pages.lengths.len(), batch)?;
        same("page table", pages.table.len(), batch.saturating_mul(pages.pages_of_a_row))?;
        paging.page_size = page_size as i64;
        paging.n_pages = n_pages as i64;
        paging.page_table = pages.table.as_ptr();
        paging.page_table_stride = pages.pages_of_a_row as i64;
        args.seqused_k = pages.lengths.as_ptr();
        args.seqlen_k =
            pages.pages_of_a_row.saturating_mul(page_size).min(i32::MAX as usize) as i64;
        Ok(())
    }
}

impl Ends<'_> {
    /// Checks what the library cannot know: how many there are, and where the tensor ends.
    fn check(&self, name: &str, batch: usize, tokens: usize) -> Result<()> {
        same(name, self.cu_seqlens.len(), batch.saturating_add(1))?;
        same(&format!("last of the {name}"), self.cu_seqlens[batch] as usize, tokens)
    }
}

fn launch(args: &mut sys::flash_forward_args_t, workspace: &mut Workspace) -> Result<()> {
    let mut size = 0;
    Error::check(unsafe { sys::flash_workspace_size(args, ptr::null(), &mut size) })?;
    (args.workspace, args.workspace_size) = workspace.reserve(size)?;
    Error::check(unsafe { sys::flash_forward(args, ptr::null(), ptr::null_mut()) })
}

/// Returns a number of keys as the C API has it: no sequence has more keys than this.
fn clamped(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

pub(crate) fn same<T: PartialEq + std::fmt::Debug>(name: &str, found: T, wanted: T) -> Result<()> {
    if found == wanted {
        return Ok(());
    }
    Err(Error::invalid(format!("{name} is {found:?}, not {wanted:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workspace_that_no_memory_holds_is_an_error() {
        let mut workspace = Workspace::new();
        workspace.reserve(100).unwrap();
        for size in [u64::MAX, i64::MAX as u64] {
            let error = workspace.reserve(size).unwrap_err();
            assert_eq!(error.status(), sys::FLASH_ERROR_OUT_OF_MEMORY);
            assert!(error.message().contains(&size.to_string()));
        }
        assert_eq!(workspace.memory.len(), 100);
    }
}
