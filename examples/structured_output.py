"""Answers of a given form: JSON, a pattern, a choice, a grammar. `python examples/structured_output.py [MODEL]`

Needs `pip install 'octavo[structured]'`. With the URL of a server in the place of MODEL, such as http://localhost:8000,
that server is asked; OPENAI_API_KEY is its key, if it wants one.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from octavo import LLM, SamplingParams, StructuredOutputsParams

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
SUM = r"""
start: NUMBER (" + " NUMBER)+ " = " NUMBER
NUMBER: /[1-9][0-9]?/
"""
FORMS: dict[str, dict[str, Any]] = {
    "Invent a person. Answer as JSON with name and age.": {"json": PERSON, "disable_any_whitespace": True},
    "In which year did Bach die?": {"regex": "1[67][0-9]{2}"},
    "Is ice cold? Answer with yes or no.": {"choice": ["yes", "no"]},
    "Write a sum of whole numbers.": {"grammar": SUM},
}
"""Question: the form of its answer. Say in the question what is wanted, too: the model does not see the form."""


def ask_model(model: str) -> list[str]:
    """Load a model and answer all questions at once."""
    conversations = [[{"role": "user", "content": question}] for question in FORMS]
    params = [
        SamplingParams(temperature=0, max_tokens=100, structured_outputs=StructuredOutputsParams(**form))
        for form in FORMS.values()
    ]
    with LLM(model, max_model_len=512) as llm:
        return [output.outputs[0].text for output in llm.chat(conversations, params, use_tqdm=False)]


def ask_server(url: str) -> list[str]:
    """Ask over HTTP; with OpenAI's client `structured_outputs` goes into `extra_body`."""
    address = url.rstrip("/").removesuffix("/v1") + "/v1/chat/completions"
    headers = {"Content-Type": "application/json"}
    if key := os.environ.get("OPENAI_API_KEY"):
        headers["Authorization"] = f"Bearer {key}"
    answers = []
    for question, form in FORMS.items():
        messages = [{"role": "user", "content": question}]
        body = {"messages": messages, "temperature": 0, "max_tokens": 100, "structured_outputs": form}
        try:
            with urlopen(Request(address, json.dumps(body).encode(), headers)) as response:
                answers.append(json.load(response)["choices"][0]["message"]["content"])
        except HTTPError as error:
            sys.exit(f"{address} answers with status {error.code}: {error.read().decode(errors='replace')}")
        except URLError as error:
            sys.exit(f"no server answers at {address}: {error.reason}")
    return answers


def main(model: str = "smollm2-135m") -> None:
    answers = ask_server(model) if model.startswith("http") else ask_model(model)
    for question, answer in zip(FORMS, answers, strict=True):
        print(f"> {question}\n{answer}")


if __name__ == "__main__":
    main(*sys.argv[1:])
