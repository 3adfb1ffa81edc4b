//! Decodes a token of two sequences over a cache with room for more, and prints where O begins:
//!
//!     cargo run --example attention

use flashattn::{Forward, Result, Tensor, TensorMut, Workspace};

const CACHE: [usize; 4] = [2, 64, 2, 64]; // [batch, context, n_heads_kv, d_head]
const QUERIES: [usize; 4] = [2, 1, 8, 64]; // four query heads share a K/V head

fn main() -> Result<()> {
    let q = vec![0.5_f32; QUERIES.iter().product()];
    let k = vec![1.0_f32; CACHE.iter().product()];
    let v: Vec<f32> = (0..k.len()).map(|i| (i / (2 * 64) % 64) as f32).collect(); // the token
    let mut o = vec![0.0; q.len()];
    let lengths = [10, 3]; // keys that each sequence has so far
    Forward::new(Tensor::new(&q, QUERIES)?, Tensor::new(&k, CACHE)?, Tensor::new(&v, CACHE)?)
        .seqused_k(&lengths)
        .run(&mut Workspace::new(), TensorMut::new(&mut o, QUERIES)?, None)?;
    println!("libflashattn {}: O begins with {} and {}", flashattn::version(), o[0], o[8 * 64]);
    Ok(())
}
