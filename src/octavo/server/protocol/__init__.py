"""OpenAI's wire format with vLLM's extras: bytes to prompts and parameters, outputs to bytes. Pure functions, no I/O.

A request takes this way: `decoding.read_body` → `prompts` and `sampling` → the engine → `completions` or `chat`, which
write the answer; what cannot be served is a `RequestError`, which `errors` turns into a status and a body.
"""
