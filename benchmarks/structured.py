"""What does a form cost? 32 requests decode, with each kind of form and without, in turn; prints JSON.

What else a form needs, a bias against tokens that end it, its neighbours without a mask have too.

usage: python benchmarks/structured.py MODEL [ROUNDS]
"""

from __future__ import annotations

import functools
import json
import statistics
import sys
import time
from typing import Any

from octavo import LLM, SamplingParams

BATCH = 32
OUTPUT_LEN = 96
_PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "email": {"type": "string", "format": "email"},
        "tags": {"type": "array", "items": {"enum": ["new", "vip", "banned"]}},
        "address": {"type": "object", "properties": {"street": {"type": "string"}, "zip": {"type": "string"}}},
    },
    "required": ["name", "age", "email", "tags", "address"],
    "additionalProperties": False,
}
FORMS: dict[str, dict[str, Any] | None] = {
    "none": None,
    "json": {"json": {"type": "array", "items": _PERSON, "minItems": 50}},
    "compact json": {"json": {"type": "array", "items": _PERSON, "minItems": 50}, "disable_any_whitespace": True},
    "json object": {"json_object": True},
    "regex": {"regex": r"([A-Z][a-z ]+\. )+"},
    "counted regex": {"regex": r"([A-Z][a-z ]{3,30}\. ){90}"},
    "choice": {"choice": [f"{index} " + "The quick brown fox jumps over the lazy dog. " * 30 for index in range(20)]},
    "grammar": {"grammar": 'root ::= pair{400}\npair ::= [a-z]+ "=" [0-9]+ ";\\n"'},
}
"""None of them ends within the output, but for an object that closes: see `tokens_per_second`."""


def tokens_per_second(llm: LLM, form: dict[str, Any] | None, *, is_masked: bool = True) -> float:
    """Decode one batch; a warm prompt leaves the decoding alone to be timed. No row ends early, and leaves a gap.

    Without a mask all else is as the form has it.
    """
    closing = closing_tokens(llm) if form is not None and "json_object" in form else None
    params = [
        SamplingParams(
            temperature=1.0,
            seed=seed,
            min_tokens=OUTPUT_LEN,
            max_tokens=OUTPUT_LEN,
            structured_outputs=form if is_masked else None,
            logit_bias=closing,
        )
        for seed in range(BATCH)
    ]
    started = time.perf_counter()
    outputs = llm.generate(["Some data, at great length:\n"] * BATCH, params, use_tqdm=False)
    seconds = time.perf_counter() - started
    num_tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
    assert num_tokens == BATCH * OUTPUT_LEN, f"{form} ended early: {num_tokens} tokens"
    return num_tokens / seconds


@functools.cache
def closing_tokens(llm: LLM) -> dict[int, float]:
    """Return a bias against every token that can close an object."""
    vocabulary = llm.get_tokenizer().get_vocab()
    return {token_id: -100.0 for token, token_id in vocabulary.items() if "}" in token}


def main() -> None:
    """Measure in rounds, each form between two runs without."""
    model, rounds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 7
    speeds: dict[str, list[float]] = {name: [] for name in FORMS}
    shares: dict[str, list[float]] = {name: [] for name in FORMS}
    with LLM(model, max_model_len=512, max_num_seqs=BATCH) as llm:
        for form in FORMS.values():
            tokens_per_second(llm, form)
        for _ in range(rounds):
            for name, form in FORMS.items():
                before, speed, after = (tokens_per_second(llm, form, is_masked=on) for on in (False, True, False))
                speeds[name].append(speed)
                shares[name].append(2 * speed / (before + after))
    figures = {
        name: {
            "tokens_per_second": round(statistics.median(speeds[name]), 1),
            "share_of_unmasked": round(statistics.median(shares[name]), 3),
            "lowest_share": round(min(shares[name]), 3),
        }
        for name in FORMS
    }
    print(json.dumps({"model": model, "batch": BATCH, "output_len": OUTPUT_LEN, "rounds": rounds, "forms": figures}))


if __name__ == "__main__":
    main()
