"""flashattn.compat.bert_padding: between padded and ragged batches."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from flashattn.compat import bert_padding  # noqa: E402

MASK = torch.tensor([[1, 1, 0, 0], [0, 0, 0, 0], [0, 1, 1, 1]])
X = torch.arange(24.0).view(3, 4, 2)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.int64])
def test_unpad_and_pad(dtype: torch.dtype) -> None:
    tokens, indices, cu_seqlens, longest, used = bert_padding.unpad_input(X, MASK.to(dtype))
    assert torch.equal(tokens, X[MASK.bool()]) and indices.tolist() == [0, 1, 9, 10, 11]
    assert cu_seqlens.tolist() == [0, 2, 2, 5] and cu_seqlens.dtype == torch.int32
    assert longest == 3 and type(longest) is int
    assert used.tolist() == [2, 0, 3] and used.dtype == torch.int32
    padded = bert_padding.pad_input(tokens, indices, 3, 4)
    assert torch.equal(padded, X * MASK[..., None])


def test_unused_places_are_kept_and_not_counted() -> None:
    unused = torch.tensor([[0, 0, 1, 0], [0, 0, 0, 0], [1, 0, 0, 0]])
    tokens, indices, cu_seqlens, longest, used = bert_padding.unpad_input(X, MASK, unused)
    assert indices.tolist() == [0, 1, 2, 8, 9, 10, 11] and len(tokens) == 7
    assert cu_seqlens.tolist() == [0, 3, 3, 7] and longest == 4 and used.tolist() == [2, 0, 3]


def test_several_sequences_in_a_row() -> None:
    lengths = torch.tensor([[1, 2, 0, 0], [0, 0, 0, 0], [4, 0, 0, 0]])
    found = bert_padding.unpad_input_for_concatenated_sequences(X, lengths)
    tokens, indices, cu_seqlens, longest = found
    assert indices.tolist() == [0, 1, 2, 8, 9, 10, 11] and longest == 4
    assert cu_seqlens.tolist() == [0, 1, 3, 7] and cu_seqlens.dtype == torch.int32
    assert torch.equal(tokens, X.flatten(0, 1)[indices])


def test_rows_by_index() -> None:
    indices = torch.tensor([2, 0])
    assert torch.equal(bert_padding.index_first_axis(X, indices), X[[2, 0]])
    rows, same = bert_padding.index_first_axis_residual(X, indices)
    assert torch.equal(rows, X[[2, 0]]) and torch.equal(same, X)
    put = bert_padding.index_put_first_axis(X[:2], indices, 4)
    assert torch.equal(put[2], X[0]) and torch.equal(put[0], X[1]) and not put[[1, 3]].any()


def test_gradients_pass_through() -> None:
    x = X.clone().requires_grad_()
    tokens, indices, *_ = bert_padding.unpad_input(x, MASK)
    bert_padding.pad_input(3 * tokens, indices, 3, 4).sum().backward()
    assert torch.equal(x.grad, 3.0 * MASK[..., None].expand_as(X))
