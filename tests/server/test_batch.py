"""run-batch: every line answered once, whatever happens in between."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from face_fakes import make_engine
from tiny_models import TINY_DIR

from octavo.errors import ConfigError
from octavo.server.batch import BatchCounts, run_batch
from octavo.server.batch_files import BatchOutput

MODEL = "m"


def make_request(custom_id: str, **body: Any) -> dict[str, Any]:
    body = {"model": MODEL, "prompt": f"say {custom_id}", "max_tokens": 20, **body}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": body}


def make_chat(custom_id: str, **body: Any) -> dict[str, Any]:
    body = {"model": MODEL, "messages": [{"role": "user", "content": f"say {custom_id}"}], "max_tokens": 20, **body}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}


def make_embedding(custom_id: str, text: Any, **body: Any) -> dict[str, Any]:
    body = {"model": MODEL, "input": text, **body}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/embeddings", "body": body}


def write_lines(path: Path, *lines: Any) -> Path:
    """Objects as JSON, texts as they are."""
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("".join(text + "\n" for text in texts))
    os.utime(path, (1_000_000_000, 1_000_000_000))
    return path


def run(tmp_path: Path, *lines: Any, output: str = "out.jsonl") -> list[dict[str, Any]]:
    counts = run_counted(tmp_path, *lines, output=output)
    answers = read_answers(tmp_path / output)
    assert len(answers) == counts.num_lines
    return answers


def run_counted(tmp_path: Path, *lines: Any, output: str = "out.jsonl") -> BatchCounts:
    source = write_lines(tmp_path / "in.jsonl", *lines)
    target = tmp_path / output
    return run_batch(
        lambda: make_engine(max_model_len=256)[0], source, target, model_names=(MODEL,), seed=0, shows_progress=False
    )


def read_answers(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_line_gets_the_answer_that_a_server_would_give(tmp_path: Path) -> None:
    answers = {line["custom_id"]: line for line in run(tmp_path, make_request("a"), make_chat("b"))}
    assert answers["a"]["response"]["status_code"] == 200
    assert answers["a"]["response"]["body"]["choices"][0]["text"] == "say a"
    assert answers["b"]["response"]["body"]["choices"][0]["message"]["content"] == "user: say b\nassistan"
    assert answers["a"]["error"] is None


def make_response(custom_id: str, **body: Any) -> dict[str, Any]:
    body = {"model": MODEL, "input": f"say {custom_id}", "max_output_tokens": 20, **body}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/responses", "body": body}


def test_responses_are_answered_too_and_refused_in_their_words(tmp_path: Path) -> None:
    lines = (make_response("a"), make_response("b", max_output_tokens=1000), make_response("c", stream=True))
    answers = {line["custom_id"]: line["response"] for line in run(tmp_path, *lines)}
    (item,) = answers["a"]["body"]["output"]
    assert item["content"][0]["text"] == "user: say a\nassistan"
    assert answers["b"]["body"]["error"]["param"] == "max_output_tokens"
    assert answers["c"]["body"]["error"]["param"] == "stream"
    (again,) = run(tmp_path, make_response("a"), output="again")
    assert again["response"] == answers["a"]


def test_a_list_of_prompts_is_answered_in_one_line(tmp_path: Path) -> None:
    (answer,) = run(tmp_path, make_request("a", prompt=["one", "two"]))
    assert [choice["text"] for choice in answer["response"]["body"]["choices"]] == ["one", "two"]


def test_texts_are_embedded_beside_others_that_are_gone_on_with(tmp_path: Path) -> None:
    lines = make_embedding("a", ["a", "bc"], use_activation=False), make_request("b"), make_embedding("c", "a")
    answers = {line["custom_id"]: line["response"]["body"] for line in run(tmp_path, *lines)}
    assert [entry["embedding"] for entry in answers["a"]["data"]] == [[97, 0, 1, 0], [99, 1, 1, 0]]
    assert answers["a"]["usage"] == {"prompt_tokens": 3, "completion_tokens": 0, "total_tokens": 3}
    assert answers["a"]["object"] == "list"
    assert answers["b"]["choices"][0]["text"] == "say b"
    (entry,) = answers["c"]["data"]
    assert sum(value * value for value in entry["embedding"]) == pytest.approx(1)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2 is not a request"),
        ("[1]", "line 2 is not a request"),
        ('{"custom_id": 5, "method": "POST", "url": "/v1/completions", "body": {}}', "custom_id"),
        ({**make_request("b"), "method": "GET"}, "method must be POST"),
        ({**make_request("b"), "url": "/v1/images"}, "url must be one of"),
        (make_embedding("b", ""), "input cannot be empty"),
        (make_embedding("b", "x", dimensions=5), "dimensions is 5"),
        ({**make_request("b"), "body": 5}, "JSON object"),
        (make_request("b", n=0), "n must be in"),
        (make_request("b", model="other"), "does not exist"),
        (make_request("b", stream=True), "stream must be false"),
        (make_request("b", prompt=["x", "x" * 300, "y"]), "maximum context length"),
        (make_request("b", max_tokens=253), "maximum context length is 256"),
        (make_chat("b", messages=[]), "messages must be"),
    ],
    ids=[
        "torn", "list", "id", "method", "url", "input", "dimensions", "body", "parameter", "model", "stream", "length",
        "room", "chat",
    ],
)  # fmt: skip
def test_a_bad_line_gets_an_error_and_the_others_their_answers(tmp_path: Path, line: Any, message: str) -> None:
    answers = run(tmp_path, make_request("a"), line, make_request("c"))
    faults = [answer for answer in answers if answer["error"] is not None]
    assert len(faults) == 1
    assert message in faults[0]["error"]["message"]
    assert faults[0]["response"]["status_code"] in (400, 404)
    assert faults[0]["response"]["body"]["error"]["message"] == faults[0]["error"]["message"]
    assert {answer["custom_id"] for answer in answers if answer["error"] is None} == {"a", "c"}


def test_a_custom_id_that_is_used_again_is_refused_with_the_line_that_has_it(tmp_path: Path) -> None:
    answers = run(tmp_path, make_request("a"), make_request("a", prompt="again"))
    assert [answer["response"]["body"]["choices"][0]["text"] for answer in answers if answer["custom_id"] == "a"] == [
        "say a"
    ]
    (fault,) = (answer for answer in answers if answer["error"] is not None)
    assert fault["custom_id"] is None
    assert "line 2 has the custom_id of line 1" in fault["error"]["message"]


@pytest.mark.parametrize(
    "line",
    [
        {"custom_id": "b"},
        {**make_request("b"), "method": 5},
        {"body": {}, "url": ["x"], "custom_id": "b"},
    ],
    ids=["alone", "method", "url"],
)
def test_a_line_that_is_no_request_keeps_the_custom_id_that_can_be_read(tmp_path: Path, line: Any) -> None:
    answers = run(tmp_path, make_request("a"), line, make_request("b"))
    by_id = {answer["custom_id"]: answer for answer in answers}
    assert "line 2 is not a request" in by_id["b"]["error"]["message"]
    assert "line 3 has the custom_id of line 2" in by_id[None]["error"]["message"]


def test_a_resumed_run_counts_what_failed_before(tmp_path: Path) -> None:
    lines = [make_request("a"), "{", make_request("b", n=0), make_request("c")]
    first = run_counted(tmp_path, *lines)
    assert (first.num_answered, first.num_errors) == (2, 2)
    again = run_counted(tmp_path, *lines, make_request("d"), make_request("e", n=0))
    assert (again.num_answered, again.num_errors, again.num_done_before) == (3, 3, 4)


def test_a_second_run_does_nothing(tmp_path: Path) -> None:
    lines = [make_request("a"), "{", make_request("a"), "", make_request("b")]
    before = run_counted(tmp_path, *lines)
    assert (before.num_lines, before.num_done_before) == (4, 0)
    text = (tmp_path / "out.jsonl").read_bytes()
    after = run_counted(tmp_path, *lines)
    assert (after.num_lines, after.num_done_before) == (4, 4)
    assert (tmp_path / "out.jsonl").read_bytes() == text


@pytest.mark.parametrize("keep", [0, 1, 200, -1], ids=["nothing", "a_byte", "a_part", "all_but_the_newline"])
def test_a_torn_last_line_is_written_anew(tmp_path: Path, keep: int) -> None:
    lines = [make_request(str(index), temperature=0.9) for index in range(5)]
    whole = run(tmp_path, *lines)
    path = tmp_path / "out.jsonl"
    texts = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(texts[:2]) + texts[2][:keep])
    assert sorted(map(str, run(tmp_path, *lines))) == sorted(map(str, whole))


def test_an_answer_depends_on_its_line_alone(tmp_path: Path) -> None:
    lines = [make_request(str(index), temperature=1.5, prompt=["x", "x"]) for index in range(8)]
    forth = run(tmp_path, *lines, output="forth")
    back = run(tmp_path, *reversed(lines), output="back")
    assert sorted(map(str, forth)) == sorted(map(str, back))


def test_a_file_that_is_no_output_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "out.jsonl").write_text("dear diary\n")
    with pytest.raises(ConfigError, match="line 1 is something else"):
        run(tmp_path, make_request("a"))
    assert (tmp_path / "out.jsonl").read_text() == "dear diary\n"


@pytest.mark.parametrize(
    "content",
    ["precious notes", json.dumps(make_request("a")), '{"id": "mine"', "\0" * 20],
    ids=["text", "request", "json", "zeros"],
)
def test_a_last_line_that_no_kill_has_torn_is_not_cut_off(tmp_path: Path, content: str) -> None:
    (tmp_path / "out.jsonl").write_text(content)
    with pytest.raises(ConfigError, match="line 1 is something else"):
        run(tmp_path, make_request("a"))
    assert (tmp_path / "out.jsonl").read_text() == content


def test_the_input_is_not_taken_as_output(tmp_path: Path) -> None:
    text = json.dumps(make_request("a"))
    path = tmp_path / "in.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match="not the output of a batch"):
        run_batch(lambda: make_engine()[0], path, path, model_names=(MODEL,), seed=0, shows_progress=False)
    assert path.read_text() == text


def test_what_is_not_a_file_is_refused_on_either_side(tmp_path: Path) -> None:
    source, pipe = write_lines(tmp_path / "in.jsonl", make_request("a")), tmp_path / "pipe"
    os.mkfifo(pipe)
    for given in ((source, Path("/dev/null")), (source, pipe), (pipe, tmp_path / "out.jsonl"), (source, tmp_path)):
        with pytest.raises(ConfigError, match="not a regular file"):
            run_batch(lambda: make_engine()[0], *given, model_names=(MODEL,), seed=0, shows_progress=False)


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path: Path) -> None:
    (answer,) = run(tmp_path, "\ufeff" + json.dumps(make_request("a")))
    assert answer["response"]["status_code"] == 200


def test_two_runs_cannot_write_to_one_file(tmp_path: Path) -> None:
    with BatchOutput(tmp_path / "out.jsonl"), pytest.raises(ConfigError, match="another run"):
        run(tmp_path, make_request("a"))


def start_run(source: Path, target: Path) -> subprocess.Popen[bytes]:
    """Four lines at a time, so that answers come one after the other."""
    command = [sys.executable, "-m", "octavo", "run-batch", "-q", "-i", str(source), "-o", str(target)]
    command += ["--model", str(TINY_DIR / "qwen3"), "--served-model-name", MODEL, "--max-num-seqs", "4"]
    return subprocess.Popen(command)


def size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def kill_while_it_writes(process: subprocess.Popen[bytes], target: Path, rng: random.Random) -> bool:
    """Kill a run a random moment after its first answer; one in four before. Returns whether it had ended by then."""
    before, is_early = size_of(target), rng.random() < 0.25
    while not is_early and size_of(target) == before and process.poll() is None:
        time.sleep(0.001)
    time.sleep(rng.uniform(0.0, 0.3))
    process.send_signal(signal.SIGKILL)
    return process.wait() == 0


def kill_at_random(tmp_path: Path, *, num_lines: int, num_kills: int) -> None:
    lines = [make_request(f"r{index}", max_tokens=20 + index % 30, ignore_eos=True) for index in range(num_lines)]
    source = write_lines(tmp_path / "in.jsonl", *lines)
    undisturbed, target = tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    assert start_run(source, undisturbed).wait() == 0
    rng = random.Random(0)
    num_resumed = 0
    for _ in range(num_kills):
        if kill_while_it_writes(start_run(source, target), target, rng):
            target.unlink()  # nothing was left to kill: from the beginning, for the kills that are still to come
        num_resumed += size_of(target) > 0
    assert num_resumed
    assert start_run(source, target).wait() == 0
    assert sorted(target.read_bytes().splitlines()) == sorted(undisturbed.read_bytes().splitlines())
    assert len({answer["custom_id"] for answer in read_answers(target)}) == num_lines


def test_a_run_that_is_killed_and_repeated_leaves_what_an_undisturbed_one_does(tmp_path: Path) -> None:
    kill_at_random(tmp_path, num_lines=40, num_kills=2)


@pytest.mark.slow
def test_twenty_kills_lose_and_double_nothing(tmp_path: Path) -> None:
    kill_at_random(tmp_path, num_lines=300, num_kills=20)
