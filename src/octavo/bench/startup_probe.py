"""One start, in a process of its own: `python -m octavo.bench.startup_probe STARTED_AT MODEL OPTIONS` prints JSON.

STARTED_AT is the monotonic clock of the parent at the moment it made this process; OPTIONS are the engine's, as JSON.
"""

import time

ENTERED_AT = time.monotonic()

if __name__ == "__main__":
    import json
    import sys

    from octavo.frontend.machine import peak_rss_bytes
    from octavo.llm import LLM
    from octavo.sampling_params import SamplingParams

    started_at, model, options = float(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
    imported_at = time.monotonic()
    with LLM(model, **options) as llm:
        loaded_at = time.monotonic()
        llm.generate("The", SamplingParams(temperature=0, max_tokens=1, ignore_eos=True), use_tqdm=False)
        first_token_at = time.monotonic()
    measured = {
        "python_s": ENTERED_AT - started_at,
        "import_s": imported_at - ENTERED_AT,
        "load_s": loaded_at - imported_at,
        "first_token_s": first_token_at - loaded_at,
        "total_s": first_token_at - started_at,
        "peak_rss_bytes": peak_rss_bytes(),
    }
    print(json.dumps(measured))
