"""What does a form cost? 32 requests decode, with each kind of form and without, in turn; prints JSON.

usage: python benchmarks/structured.py MODEL [ROUNDS]
"""

from __future__ import annotations

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
    "regex": {"regex": r"([A-Z][a-z ]{3,30}\. ){90}"},
    "choice": {"choice": [f"{index} " + "The quick brown fox jumps over the lazy dog. " * 30 for index in range(20)]},
    "grammar": {"grammar": 'root ::= pair{400}\npair ::= [a-z]+ "=" [0-9]+ ";\\n"'},
}
"""None of them ends within the output."""


def tokens_per_second(llm: LLM, form: dict[str, Any] | None) -> float:
    """Decode one batch; a warm prompt leaves the decoding alone to be timed."""
    params = [
        SamplingParams(
            temperature=1.0, seed=seed, min_tokens=OUTPUT_LEN, max_tokens=OUTPUT_LEN, structured_outputs=form
        )
        for seed in range(BATCH)
    ]
    started = time.perf_counter()
    outputs = llm.generate(["Some data, at great length:\n"] * BATCH, params, use_tqdm=False)
    seconds = time.perf_counter() - started
    return sum(len(output.outputs[0].token_ids) for output in outputs) / seconds


def main() -> None:
    """Measure in rounds, so that each kind is compared with what ran beside it."""
    model, rounds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 7
    speeds: dict[str, list[float]] = {name: [] for name in FORMS}
    with LLM(model, max_model_len=512, max_num_seqs=BATCH) as llm:
        for form in FORMS.values():
            tokens_per_second(llm, form)
        for _ in range(rounds):
            for name, form in FORMS.items():
                speeds[name].append(tokens_per_second(llm, form))
    figures = {}
    for name, each in speeds.items():
        shares = [own / free for own, free in zip(each, speeds["none"], strict=True)]
        figures[name] = {
            "tokens_per_second": round(statistics.median(each), 1),
            "share_of_unmasked": round(statistics.median(shares), 3),
            "lowest_share": round(min(shares), 3),
        }
    print(json.dumps({"model": model, "batch": BATCH, "output_len": OUTPUT_LEN, "rounds": rounds, "forms": figures}))


if __name__ == "__main__":
    main()
