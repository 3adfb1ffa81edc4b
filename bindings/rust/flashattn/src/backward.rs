//! A call for the gradients of attention.

use std::ptr;

use crate::element::{Element, Query};
use crate::error::{Error, Result};
use crate::forward::{same, Forward, Workspace};
use crate::tensor::{Tensor, TensorMut};
use flashattn_sys as sys;

/// Where gradients go, shaped as q, k, v and sinks; None: not wanted.
#[derive(Debug)]
pub struct Gradients<'a, Q, K> {
    pub dq: Option<TensorMut<'a, Q>>,
    pub dk: Option<TensorMut<'a, K>>,
    pub dv: Option<TensorMut<'a, K>>,
    /// [n_heads].
    pub d_sinks: Option<&'a mut [f32]>,
}

impl<Q, K> Default for Gradients<'_, Q, K> {
    fn default() -> Self {
        Gradients { dq: None, dk: None, dv: None, d_sinks: None }
    }
}

impl<Q: Query, K: Element> Forward<'_, Q, K> {
    /// Computes gradients of this call from d_o, that of O. o and lse are what `run` computed.
    /// Keys in pages have none. Nothing is written where it fails.
    pub fn backward<O: Query>(
        &self,
        workspace: &mut Workspace,
        o: Tensor<'_, O>,
        lse: &[f32],
        d_o: Tensor<'_, O>,
        to: Gradients<'_, Q, K>,
    ) -> Result<()> {
        let mut forward = self.args()?;
        if self.has_pages() {
            return Err(Error::invalid("pages are given: keys in pages have no gradients".into()));
        }
        let [rows, tokens, n_heads, _] = self.q_shape();
        same("o", o.shape(), self.o_shape())?;
        same("d_o", d_o.shape(), self.o_shape())?;
        same("lse", lse.len(), rows.saturating_mul(tokens).saturating_mul(n_heads))?;
        forward.dtype = O::DTYPE;
        forward.o = o.c_tensor();
        forward.lse = lse.as_ptr().cast_mut(); // which is only read
        if o.repeats() || d_o.repeats() {
            forward.flags |= sys::FLASH_FLAG_BROADCAST;
        }
        let mut args = sys::flash_backward_args_t {
            forward: &forward,
            d_o: d_o.c_tensor(),
            ..sys::flash_backward_args_t::INIT
        };
        if self.is_ragged() {
            args.total_q = tokens as i64;
        }
        self.set_gradients(to, &mut args)?;
        launch(&mut args, workspace)
    }

    /// The tensors are borrowed for as long as the call.
    fn set_gradients(
        &self,
        to: Gradients<'_, Q, K>,
        args: &mut sys::flash_backward_args_t,
    ) -> Result<()> {
        if let Some(mut dq) = to.dq {
            same("dq", dq.shape(), self.q_shape())?;
            args.dq = dq.c_tensor();
        }
        if let Some(mut dk) = to.dk {
            same("dk", dk.shape(), self.k_shape())?;
            args.dk = dk.c_tensor();
        }
        if let Some(mut dv) = to.dv {
            same("dv", dv.shape(), self.v_shape())?;
            args.dv = dv.c_tensor();
        }
        if let Some(d_sinks) = to.d_sinks {
            same("d_sinks", d_sinks.len(), self.q_shape()[2])?;
            args.d_sinks = d_sinks.as_mut_ptr();
        }
        Ok(())
    }
}

fn launch(args: &mut sys::flash_backward_args_t, workspace: &mut Workspace) -> Result<()> {
    let mut best = 0;
    Error::check(unsafe { sys::flash_backward_workspace_size(args, ptr::null_mut(), &mut best) })?;
    (args.workspace, args.workspace_size) = workspace.reserve(best)?;
    Error::check(unsafe { sys::flash_backward(args, ptr::null_mut()) })
}
