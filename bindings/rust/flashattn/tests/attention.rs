//! Results against attention in f64, and what is refused.

use flashattn::{sys, Forward, Gradients, Pages, Tensor, TensorMut, Workspace, BF16};

/// Numbers between -1 and 1 that look random.
fn values(n: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..n)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect()
}

fn size(shape: [usize; 4]) -> usize {
    shape.iter().product()
}

/// Attention in f64 where query i of a sequence sees the keys that `sees(b, i, j)` says.
fn naive(
    (q, of_q): (&[f32], [usize; 4]),
    (k, v, of_k): (&[f32], &[f32], [usize; 4]),
    sees: impl Fn(usize, usize, usize) -> bool,
    sinks: Option<&[f32]>,
) -> (Vec<f64>, Vec<f64>) {
    let [batch, seqlen_q, n_heads, d] = of_q;
    let [_, seqlen_k, n_heads_kv, _] = of_k;
    let (mut o, mut lse) =
        (vec![0.0; size(of_q)], vec![f64::NEG_INFINITY; batch * n_heads * seqlen_q]);
    for (b, i, h) in (0..batch)
        .flat_map(|b| (0..seqlen_q).flat_map(move |i| (0..n_heads).map(move |h| (b, i, h))))
    {
        let at_q = ((b * seqlen_q + i) * n_heads + h) * d;
        let at_k = |j| ((b * seqlen_k + j) * n_heads_kv + h / (n_heads / n_heads_kv)) * d;
        let seen: Vec<usize> = (0..seqlen_k).filter(|&j| sees(b, i, j)).collect();
        let dot = |j| (0..d).map(|x| q[at_q + x] as f64 * k[at_k(j) + x] as f64).sum::<f64>();
        let weights: Vec<f64> = seen.iter().map(|&j| (dot(j) / (d as f64).sqrt()).exp()).collect();
        let sum: f64 = weights.iter().sum();
        lse[(b * n_heads + h) * seqlen_q + i] = sum.ln();
        let whole = sum + sinks.map_or(0.0, |s| (s[h] as f64).exp());
        for (j, weight) in seen.iter().zip(weights) {
            for x in 0..d {
                o[at_q + x] += weight / whole * v[at_k(*j) + x] as f64;
            }
        }
    }
    (o, lse)
}

fn assert_close(found: &[f32], wanted: &[f64], most: f64) {
    assert_eq!(found.len(), wanted.len());
    for (i, (a, b)) in found.iter().zip(wanted).enumerate() {
        assert!((*a as f64 - b).abs() <= most || *a as f64 == *b, "element {i}: {a}, not {b}");
    }
}

const Q: [usize; 4] = [2, 9, 4, 16];
const K: [usize; 4] = [2, 13, 2, 16];

fn inputs() -> (Vec<f32>, Vec<f32>, Vec<f32>) {
    (values(size(Q), 1), values(size(K), 2), values(size(K), 3))
}

fn run(forward: Forward<f32, f32>, shape: [usize; 4]) -> flashattn::Result<(Vec<f32>, Vec<f32>)> {
    let mut o = vec![f32::NAN; size(shape)];
    let mut lse = vec![f32::NAN; shape[0] * shape[1] * shape[2]];
    let o_tensor = TensorMut::new(&mut o, shape)?;
    forward.run(&mut Workspace::new(), o_tensor, Some(&mut lse))?;
    Ok((o, lse))
}

fn base<'a>(q: &'a [f32], k: &'a [f32], v: &'a [f32]) -> Forward<'a, f32, f32> {
    let (q, k, v) = (Tensor::new(q, Q), Tensor::new(k, K), Tensor::new(v, K));
    Forward::new(q.unwrap(), k.unwrap(), v.unwrap())
}

#[test]
fn results_are_those_of_attention_in_f64() {
    let (q, k, v) = inputs();
    let sinks = [0.5, -1.0, 2.0, 0.0];
    let lengths = [13, 5];
    let offset = K[1] - Q[1];
    type Sees = Box<dyn Fn(usize, usize, usize) -> bool>;
    type Case<'a> = (Forward<'a, f32, f32>, Sees, Option<&'a [f32]>);
    let cases: [Case; 5] = [
        (base(&q, &k, &v), Box::new(|_, _, _| true), None),
        (base(&q, &k, &v).causal(), Box::new(move |_, i, j| j <= i + offset), None),
        (
            base(&q, &k, &v).window(Some(3), None),
            Box::new(move |_, i, j| j + 3 >= i + offset),
            None,
        ),
        (base(&q, &k, &v).sinks(&sinks), Box::new(|_, _, _| true), Some(&sinks)),
        (
            base(&q, &k, &v).seqused_k(&lengths),
            Box::new(move |b, _, j| j < lengths[b] as usize),
            None,
        ),
    ];
    for (forward, sees, sinks) in cases {
        let (o, lse) = run(forward, Q).unwrap();
        let (wanted_o, wanted_lse) = naive((&q, Q), (&k, &v, K), sees, sinks);
        assert_close(&o, &wanted_o, 1e-6);
        assert_close(&lse, &wanted_lse, 1e-5);
    }
}

#[test]
fn numbers_reach_the_library() {
    let (q, k, v) = inputs();
    let (plain, _) = run(base(&q, &k, &v), Q).unwrap();
    let everything = base(&q, &k, &v).window(Some(usize::MAX), Some(usize::MAX));
    assert_eq!(run(everything.attention_chunk(usize::MAX), Q).unwrap().0, plain);
    for other in [
        base(&q, &k, &v).softmax_scale(0.1),
        base(&q, &k, &v).softcap(0.5),
        base(&q, &k, &v).attention_chunk(5),
        base(&q, &k, &v).causal().diagonal_offset(-1),
    ] {
        assert_ne!(run(other, Q).unwrap().0, plain);
    }
    assert_eq!(run(base(&q, &k, &v).softmax_scale(0.25), Q).unwrap().0, plain);
    assert!(run(base(&q, &k, &v).softmax_scale(0.0), Q).is_err());
}

#[test]
fn strides_say_where_elements_lie() {
    let (q, k, v) = inputs();
    let (plain, _) = run(base(&q, &k, &v), Q).unwrap();
    let [batch, seqlen, n_heads, d] = Q;
    let heads_first = [seqlen * n_heads * d, d, seqlen * d];
    let place = |i: usize| {
        let (x, h, s, b) =
            (i % d, i / d % n_heads, i / (d * n_heads) % seqlen, i / (d * n_heads * seqlen));
        ((b * n_heads + h) * seqlen + s) * d + x
    };
    let mut turned = vec![0.0; q.len()];
    q.iter().enumerate().for_each(|(i, x)| turned[place(i)] = *x);
    let mut o = vec![0.0; q.len()];
    let forward = Forward::new(
        Tensor::strided(&turned, Q, heads_first).unwrap(),
        Tensor::new(&k, K).unwrap(),
        Tensor::new(&v, K).unwrap(),
    );
    let to = TensorMut::strided(&mut o, Q, heads_first).unwrap();
    forward.run(&mut Workspace::new(), to, None).unwrap();
    assert!((0..o.len()).all(|i| o[place(i)] == plain[i]));
    let one = Tensor::strided(&k[..13 * 2 * 16], K, [0, 32, 16]).unwrap(); // for both sequences
    let repeated = [&k[..13 * 2 * 16], &k[..13 * 2 * 16]].concat();
    let (found, _) = run(Forward::new(Tensor::new(&q, Q).unwrap(), one, one), Q).unwrap();
    assert_eq!(found, run(base(&q, &repeated, &repeated), Q).unwrap().0);
    assert_eq!(batch, 2);
}

#[test]
fn ragged_batches_and_pages_have_the_bits_of_their_sequences() {
    let (q, k, v) = inputs();
    let ends_q = [0, 9, 18];
    let ends_k = [0, 13, 26];
    let ragged = Forward::new(
        Tensor::new(&q, [1, 18, 4, 16]).unwrap(),
        Tensor::new(&k, [1, 26, 2, 16]).unwrap(),
        Tensor::new(&v, [1, 26, 2, 16]).unwrap(),
    )
    .ragged_q(&ends_q, 9)
    .ragged_k(&ends_k, 13)
    .causal();
    let (plain, _) = run(base(&q, &k, &v).causal(), Q).unwrap();
    assert_eq!(run(ragged, [1, 18, 4, 16]).unwrap().0, plain);

    // Pages of 4 keys of 32 numbers: those of sequence 0, then those of sequence 1, backwards.
    let mut pools = [vec![f32::NAN; 8 * 4 * 32], vec![f32::NAN; 8 * 4 * 32]];
    let table: Vec<i32> = (0..8).rev().collect();
    for (pool, from) in pools.iter_mut().zip([&k, &v]) {
        for (b, j) in (0..2).flat_map(|b| (0..13).map(move |j| (b, j))) {
            let at = (table[b * 4 + j / 4] as usize * 4 + j % 4) * 32;
            pool[at..at + 32].copy_from_slice(&from[(b * 13 + j) * 32..][..32]);
        }
    }
    let paged = Forward::new(
        Tensor::new(&q, Q).unwrap(),
        Tensor::new(&pools[0], [8, 4, 2, 16]).unwrap(),
        Tensor::new(&pools[1], [8, 4, 2, 16]).unwrap(),
    )
    .pages(Pages { table: &table, pages_of_a_row: 4, lengths: &[13, 13] });
    assert_eq!(run(paged.causal(), Q).unwrap().0, plain);

    // Sequence 1 without its last page, which has one key, is as with 12 keys.
    let mut holes = table.clone();
    holes[7] = -1;
    let with_holes = paged.pages(Pages { table: &holes, pages_of_a_row: 4, lengths: &[13, 13] });
    let shorter = paged.pages(Pages { table: &table, pages_of_a_row: 4, lengths: &[13, 12] });
    assert!(run(with_holes, Q).is_err());
    assert_eq!(run(with_holes.page_holes(), Q).unwrap().0, run(shorter, Q).unwrap().0);
}

#[test]
fn elements_may_have_16_bits() {
    let (q, k, v) = inputs();
    let cut = |x: &[f32]| x.iter().map(|x| BF16((x.to_bits() >> 16) as u16)).collect::<Vec<_>>();
    let wide =
        |x: &[BF16]| x.iter().map(|x| f32::from_bits((x.0 as u32) << 16)).collect::<Vec<_>>();
    let (q, k, v) = (cut(&q), cut(&k), cut(&v));
    let forward = Forward::new(
        Tensor::new(&q, Q).unwrap(),
        Tensor::new(&k, K).unwrap(),
        Tensor::new(&v, K).unwrap(),
    );
    let mut o = vec![0.0_f32; q.len()];
    forward.run(&mut Workspace::new(), TensorMut::new(&mut o, Q).unwrap(), None).unwrap();
    let (wanted, _) = naive((&wide(&q), Q), (&wide(&k), &wide(&v), K), |_, _, _| true, None);
    assert_close(&o, &wanted, 1e-2);
}

#[test]
fn what_does_not_fit_is_refused() {
    let (q, k, v) = inputs();
    let ends = [0, 9, 19];
    let tokens = Tensor::new(&q, [1, 18, 4, 16]).unwrap();
    let whole = Tensor::new(&k, K).unwrap();
    let three = values(2 * 13 * 3 * 16, 4);
    let three = Tensor::new(&three, [2, 13, 3, 16]).unwrap();
    let of_q = || Tensor::new(&q, Q).unwrap();
    let endless = Tensor::new(&q[..0], [usize::MAX, 0, 4, 16]).unwrap();
    let no_pages = Pages { table: &[], pages_of_a_row: usize::MAX, lengths: &[1, 1] };
    let wrong = [
        (run(Forward::new(of_q(), three, three), Q), "not a multiple"),
        (run(base(&q, &k, &v).sinks(&[1.0]), Q), "sinks is 1, not 4"),
        (run(base(&q, &k, &v).seqused_k(&[14, 1]), Q), "seqused_k"),
        (run(base(&q, &k, &v).seqused_k(&[1]), Q), "seqused_k is 1, not 2"),
        (run(base(&q, &k, &v), [2, 9, 4, 15]), "o is [2, 9, 4, 15], not [2, 9, 4, 16]"),
        (
            run(Forward::new(tokens, whole, whole).ragged_q(&ends, 10), [1, 18, 4, 16]),
            "last of the cu_seqlens of q is 19, not 18",
        ),
        (
            run(Forward::new(tokens, whole, whole).ragged_q(&[], 10), [1, 18, 4, 16]),
            "batch of k is 2, not 0",
        ),
        (
            run(Forward::new(endless, tokens, tokens).ragged_k(&[], 10), [usize::MAX, 0, 4, 16]),
            "cu_seqlens of k is 0, not 18446744073709551615",
        ),
        (run(base(&q, &k, &v).pages(no_pages), Q), "page table is 0, not 18446744073709551615"),
    ];
    for (result, words) in wrong {
        let error = result.expect_err(words);
        assert_eq!(error.status(), sys::FLASH_ERROR_INVALID_ARGUMENT);
        assert!(error.to_string().starts_with("FLASH_ERROR_INVALID_ARGUMENT: "));
        assert!(error.message().contains(words), "{error} has no {words}");
    }
    let mut o = vec![7.0; q.len()];
    let forward = base(&q, &k, &v).seqused_k(&[14, 1]);
    forward.run(&mut Workspace::new(), TensorMut::new(&mut o, Q).unwrap(), None).unwrap_err();
    assert!(o.iter().all(|&x| x == 7.0));
}

#[test]
fn tensors_lie_in_their_slices() {
    let mut data = vec![0.0_f32; 24];
    for (shape, strides) in [
        ([1, 2, 3, 4], [24, 13, 4]),
        ([2, 2, 3, 4], [24, 12, 4]),
        ([2, 1, 1, 4], [usize::MAX, 4, 4]),
        ([1, 1, usize::MAX, 4], [4, 4, usize::MAX / 2]),
    ] {
        assert!(Tensor::strided(&data, shape, strides).is_err(), "{shape:?} {strides:?}");
    }
    assert!(Tensor::strided(&data, [1, 2, 3, 4], [0, 12, 4]).is_ok());
    assert!(Tensor::strided(&data, [1, 3, 2, 4], [0, 4, 12]).is_ok());
    assert!(Tensor::strided(&data, [0, 9, 9, 9], [99, 99, 99]).is_ok());
    assert!(Tensor::new(&data[..0], [usize::MAX, usize::MAX, 0, 2]).is_ok());
    for shape in [[1, 2, 3, 5], [1, 2, 3, 3], [usize::MAX, usize::MAX, 2, 2]] {
        assert!(Tensor::new(&data, shape).is_err(), "{shape:?}");
    }
    assert!(TensorMut::strided(&mut data, [1, 3, 2, 4], [0, 4, 12]).is_ok());
    assert!(TensorMut::strided(&mut data, [2, 2, 3, 4], [0, 12, 4]).is_err());
    assert!(TensorMut::strided(&mut data, [1, 2, 3, 4], [0, 3, 4]).is_err());
    assert!(TensorMut::strided(&mut data, [0, 3, 5, 4], [1, usize::MAX, usize::MAX]).is_ok());
}

#[test]
fn threads_can_be_set() {
    flashattn::set_num_threads(3).unwrap();
    assert_eq!(flashattn::num_threads(), 3);
    flashattn::set_num_threads(0).unwrap();
    assert!(flashattn::set_num_threads(-1).unwrap_err().message().contains("-1"));
}

// ---- Gradients ----

const SINKS: [f32; 4] = [0.5, -1.0, 2.0, 0.0];

/// The sum of d_o times O, in f64.
fn loss((q, k, v, sinks): (&[f32], &[f32], &[f32], &[f32]), d_o: &[f32]) -> f64 {
    let sees = |_, i, j| j <= i + K[1] - Q[1];
    let (o, _) = naive((q, Q), (k, v, K), sees, Some(sinks));
    o.iter().zip(d_o).map(|(a, b)| a * *b as f64).sum()
}

/// Compares the slope of the loss along x with the difference that a small step makes.
fn assert_slope(gradient: &[f32], x: &[f32], loss: impl Fn(&[f32]) -> f64) {
    let (step, direction) = (1.0 / 256.0, values(x.len(), 9));
    let moved =
        |by: f32| -> Vec<f32> { x.iter().zip(&direction).map(|(x, d)| x + by * d).collect() };
    let slope: f64 = gradient.iter().zip(&direction).map(|(a, b)| (a * b) as f64).sum();
    let difference = (loss(&moved(step)) - loss(&moved(-step))) / (2.0 * step as f64);
    assert!((slope - difference).abs() < 1e-3, "{slope} is not {difference}");
}

#[test]
fn gradients_are_those_of_differences() {
    let ((q, k, v), d_o) = (inputs(), values(size(Q), 4));
    let forward = base(&q, &k, &v).causal().sinks(&SINKS);
    let (o, lse) = run(forward, Q).unwrap();
    let (mut dq, mut dk, mut dv) = (q.clone(), k.clone(), v.clone());
    let mut d_sinks = [f32::NAN; 4];
    let to = Gradients {
        dq: Some(TensorMut::new(&mut dq, Q).unwrap()),
        dk: Some(TensorMut::new(&mut dk, K).unwrap()),
        dv: Some(TensorMut::new(&mut dv, K).unwrap()),
        d_sinks: Some(&mut d_sinks),
    };
    let (o, d_o_tensor) = (Tensor::new(&o, Q).unwrap(), Tensor::new(&d_o, Q).unwrap());
    forward.backward(&mut Workspace::new(), o, &lse, d_o_tensor, to).unwrap();
    assert_slope(&dq, &q, |x| loss((x, &k, &v, &SINKS), &d_o));
    assert_slope(&dk, &k, |x| loss((&q, x, &v, &SINKS), &d_o));
    assert_slope(&dv, &v, |x| loss((&q, &k, x, &SINKS), &d_o));
    assert_slope(&d_sinks, &SINKS, |x| loss((&q, &k, &v, x), &d_o));

    let mut alone = v.clone();
    let dv_alone = Some(TensorMut::new(&mut alone, K).unwrap());
    let to = Gradients { dv: dv_alone, ..Gradients::default() };
    forward.backward(&mut Workspace::new(), o, &lse, d_o_tensor, to).unwrap();
    assert_eq!(alone, dv);
}

#[test]
fn gradients_that_do_not_fit_are_refused() {
    let (q, k, v) = inputs();
    let forward = base(&q, &k, &v);
    let (o, lse) = run(forward, Q).unwrap();
    let o = Tensor::new(&o, Q).unwrap();
    let refused = |forward: Forward<f32, f32>, lse: &[f32], to: Gradients<f32, f32>| {
        let result = forward.backward(&mut Workspace::new(), o, lse, o, to);
        result.unwrap_err().message().to_string()
    };
    let (mut small, mut sinks) = (vec![0.0; 16], [0.0; 4]);
    let dq = Some(TensorMut::new(&mut small, [1, 1, 1, 16]).unwrap());
    let to = Gradients { dq, ..Gradients::default() };
    assert!(refused(forward, &lse, to).starts_with("dq is [1, 1, 1, 16], not "));
    assert!(refused(forward, &lse[1..], Gradients::default()).starts_with("lse is "));
    let to = Gradients { d_sinks: Some(&mut sinks[..3]), ..Gradients::default() };
    assert!(refused(forward, &lse, to).starts_with("d_sinks is 3, not 4"));
    let to = Gradients { d_sinks: Some(&mut sinks), ..Gradients::default() };
    assert!(refused(forward, &lse, to).contains("d_sinks is given, and sinks is NULL"));
    let lengths = [13, 13];
    let pages = Pages { table: &[0, 1], pages_of_a_row: 1, lengths: &lengths };
    assert!(refused(forward.pages(pages), &lse, Gradients::default()).contains("pages"));
}
