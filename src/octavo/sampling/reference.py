"""The whole sampler in numpy, slow and obvious: the oracle for `sampler.py` together with the native kernel.

Order of operations (vLLM's): allowed tokens, bad words, min_tokens, logit bias, penalties; then the most probable
token, or temperature, min-p, top-k, top-p and one draw. Works on dense float64 rows, from the request's whole history.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from octavo.sampling_params import SamplingParams

    FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ReferenceSample:
    """A token, and what is told about it under `raw_logprobs`."""

    token_id: int
    logprob: float
    rank: int
    top_ids: list[int]
    top_logprobs: list[float]


def sample(
    logits: NDArray[np.float32], params: SamplingParams, prompt_len: int, token_ids: list[int], uniform: float
) -> ReferenceSample:
    """Choose the token that follows `token_ids` (prompt and output).

    Args:
        uniform: the row's draw, in [0, 1).
    """
    raw = log_softmax(logits.astype(np.float64))
    processed = process_logits(logits, params, prompt_len, token_ids)
    token_id = int(np.argmax(processed)) if params.greedy else draw(probabilities(processed, params), uniform)
    best = by_value(raw)[: max(0, _num_logprobs(params, len(raw)))]
    return ReferenceSample(
        token_id,
        float(raw[token_id]),
        1 + int(np.count_nonzero(raw > raw[token_id])),
        best.tolist(),
        raw[best].tolist(),
    )


def process_logits(
    logits: NDArray[np.float32], params: SamplingParams, prompt_len: int, token_ids: list[int]
) -> FloatArray:
    """Return the logits after everything that can change which one is the largest."""
    x = logits.astype(np.float64)
    output = token_ids[prompt_len:]
    if params.allowed_token_ids is not None:
        forbidden = np.ones(len(x), np.bool_)
        forbidden[params.allowed_token_ids] = False
        x[forbidden] = -np.inf
    for word in params.bad_words_token_ids:
        prefix = word[:-1]
        if len(prefix) <= len(output) and output[len(output) - len(prefix) :] == prefix:
            x[word[-1]] = -np.inf
    if len(output) < params.min_tokens:
        x[sorted(params.eos_token_ids | set(params.stop_token_ids or ()))] = -np.inf
    for token_id, bias in (params.logit_bias or {}).items():
        x[token_id] += bias
    for token_id in set(token_ids):
        x[token_id] = (
            x[token_id] / params.repetition_penalty if x[token_id] > 0 else x[token_id] * params.repetition_penalty
        )
    for token_id in set(output):
        x[token_id] -= params.frequency_penalty * output.count(token_id) + params.presence_penalty
    return x


def probabilities(processed: FloatArray, params: SamplingParams) -> FloatArray:
    """Return the distribution that is drawn from, after temperature, min-p, top-k and top-p."""
    x = processed / params.temperature
    if params.min_p > 0:
        p = np.exp(log_softmax(x))
        x[p < params.min_p * p.max()] = -np.inf
    if 0 < params.top_k < len(x):
        x[by_value(x)[params.top_k :]] = -np.inf
    if params.top_p < 1:
        order = by_value(x)
        p = np.exp(log_softmax(x))[order]
        x[order[np.cumsum(p) - p >= params.top_p]] = -np.inf
    return np.exp(log_softmax(x))


def draw(p: FloatArray, uniform: float) -> int:
    """Return the first token, in id order, whose cumulative probability exceeds `uniform`."""
    cumulative = np.cumsum(p)
    return int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right"))


def log_softmax(x: FloatArray) -> FloatArray:
    """Return x minus the logarithm of the sum of its exponentials."""
    largest = x.max()
    shifted: FloatArray = x - largest - np.log(np.sum(np.exp(x - largest)))
    return shifted


def by_value(x: FloatArray) -> NDArray[np.int64]:
    """Return ids from the largest value down; equal values by id."""
    return np.argsort(-x, kind="stable").astype(np.int64)


def philox_uniform(seed: int, position: int, draw_index: int) -> float:
    """Return the draw of (seed, position, draw): the first word of Philox4x32-10, as a fraction of 2^32.

    Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", sections 3 and 4.
    """
    mask = 0xFFFF_FFFF
    counter = [position & mask, position >> 32 & mask, draw_index & mask, 0]
    key = [seed & mask, seed >> 32 & mask]
    for _ in range(10):
        low, high = 0xD251_1F53 * counter[0], 0xCD9E_8D57 * counter[2]
        counter = [high >> 32 ^ counter[1] ^ key[0], high & mask, low >> 32 ^ counter[3] ^ key[1], low & mask]
        key = [key[0] + 0x9E37_79B9 & mask, key[1] + 0xBB67_AE85 & mask]
    return counter[0] / 2**32


def _num_logprobs(params: SamplingParams, vocab_size: int) -> int:
    if params.logprobs is None:
        return 0
    return vocab_size if params.logprobs < 0 else min(params.logprobs, vocab_size)
