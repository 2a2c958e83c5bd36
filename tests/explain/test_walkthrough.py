from __future__ import annotations

import hashlib
import json
import re
import sys
import unicodedata
import xml.etree.ElementTree as ET
from array import array
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from octavo import SamplingParams
from octavo.cli.main import main
from octavo.config import EngineConfig
from octavo.explain.walkthrough import RequestStory, StepRow, Walkthrough, walk_through
from octavo.explain.walkthrough_text import slot_bar, walkthrough_lines

TINY = Path(__file__).resolve().parents[1] / "data" / "tiny"
SMALL_CACHE: dict[str, Any] = {"kv_cache_memory_bytes": "8M", "max_model_len": 256}


def explain(*prompts: list[int], model: str = "llama", n: int = 1, max_tokens: int = 4, **options: Any) -> Walkthrough:
    config = EngineConfig(str(TINY / model), **(SMALL_CACHE | options))
    params = SamplingParams(n=n, temperature=1.0 if n > 1 else 0.0, max_tokens=max_tokens, ignore_eos=True, seed=1)
    return walk_through(config, lambda _llm: ([{"prompt_token_ids": prompt} for prompt in prompts], params))


def run_command(*arguments: str, model: str = "llama") -> Result:
    small = ("--kv-cache-memory-bytes", "8M", "--max-model-len", "256", "--ignore-eos")
    return CliRunner().invoke(main, ["explain", "-m", str(TINY / model), *small, *arguments])


def text_of(story: Walkthrough) -> str:
    return "\n".join(line.text for line in walkthrough_lines(story))


def test_three_prompt_tokens_and_four_tokens_are_a_prefill_and_three_decodes() -> None:
    steps = explain([5, 6, 7]).steps
    assert [
        (row.kind, len(row.input_token_ids), row.output_token_id is not None, row.num_cached_after) for row in steps
    ] == [("prefill", 3, True, 3), ("decode", 1, True, 4), ("decode", 1, True, 5), ("decode", 1, True, 6)]


def test_each_decode_is_fed_the_token_made_before() -> None:
    story = explain([5, 6, 7])
    made = [row.output_token_id for row in story.steps]
    assert story.steps[0].input_token_ids == (5, 6, 7)
    assert [row.input_token_ids for row in story.steps[1:]] == [(token_id,) for token_id in made[:-1]]
    assert story.requests[0].output_token_ids == (tuple(made),)


def test_the_json_has_the_same_steps() -> None:
    result = run_command("--prompt-token-ids", "5,6,7", "--max-tokens", "4", "--json")
    steps = json.loads(result.stdout)["steps"]
    assert [(len(row["input_token_ids"]), row["num_cached_after"]) for row in steps] == [(3, 3), (1, 4), (1, 5), (1, 6)]
    assert [[block["num_filled"] for block in row["blocks"]] for row in steps] == [[3], [4], [5], [6]]
    assert all(isinstance(row["output_token_id"], int) for row in steps)


def test_the_text_has_the_same_steps() -> None:
    lines = run_command("--prompt-token-ids", "5,6,7", "--max-tokens", "4").stdout.splitlines()
    table = lines[lines.index("Step by step") + 3 :][:4]
    assert [line.split()[0] for line in table] == ["prefill", "decode", "decode", "decode"]
    blocks = lines[lines.index("The same as blocks of 16 tokens") + 4 :][:4]
    assert [word for line in blocks for word in line.split() if "/16" in word] == ["3/16", "4/16", "5/16", "6/16"]
    assert "  yes  4 tokens = 1 prefill + 3 decodes" in lines


def test_text_that_goes_into_a_file_has_no_colour() -> None:
    assert "\x1b" not in run_command("--prompt-token-ids", "5,6,7").stdout


def test_the_real_model_tells_the_same_of_the_same_prompt(smollm2_path: Path) -> None:
    arguments = [
        "explain",
        "-m",
        str(smollm2_path),
        "--prompt-token-ids",
        "504,3575,282",
        "--max-tokens",
        "4",
        "--json",
    ]
    document = json.loads(CliRunner().invoke(main, arguments).stdout)
    assert [row["num_cached_after"] for row in document["steps"]] == [3, 4, 5, 6]
    assert document["token_texts"]["3575"] == " capital"


def test_blocks_fill_one_after_the_other_and_are_published_when_full() -> None:
    last = explain(list(range(5, 35)), max_tokens=6).steps[-1]
    assert [(block.position, block.num_filled, block.is_published) for block in last.blocks] == [
        (0, 16, True),
        (1, 16, True),
        (2, 3, False),
    ]


def test_a_hash_is_that_of_all_tokens_up_to_the_end_of_its_block() -> None:
    story = explain(list(range(5, 35)), max_tokens=6)
    known = [*story.requests[0].prompt_token_ids, *story.requests[0].output_token_ids[0]]
    expected = [hashlib.sha256(array("i", known[:end]).tobytes()).hexdigest()[:12] for end in (16, 32)]
    assert [block.hash for block in story.steps[-1].blocks] == [*expected, None]


def test_the_last_step_shows_the_blocks_before_they_are_freed() -> None:
    for story in (explain([5, 6, 7], max_tokens=1), explain([5, 6, 7], [8, 9], max_tokens=3)):
        assert all(row.blocks for row in story.steps)


def test_a_prompt_in_chunks_makes_its_token_in_the_last_of_them() -> None:
    story = explain(list(range(5, 45)), max_tokens=2, max_num_batched_tokens=16, max_num_seqs=4)
    assert [(row.kind, len(row.input_token_ids), row.output_token_id is not None) for row in story.steps] == [
        ("prefill", 16, False),
        ("prefill", 16, False),
        ("prefill", 8, True),
        ("decode", 1, True),
    ]
    assert "The prompt is fed in 3 chunks" in text_of(story)


def test_equal_beginnings_in_a_batch_share_blocks() -> None:
    story = explain(list(range(5, 25)), list(range(5, 23)), max_tokens=3)
    shared = [block for row in story.steps for block in row.blocks if block.ref_cnt == 2]
    assert {block.position for block in shared} == {0}
    assert "Sharing saves 1 block" in text_of(story)


def test_answers_to_one_prompt_fork_after_its_prefill() -> None:
    story = explain(list(range(5, 25)), n=3, max_tokens=4)
    first = [row for row in story.steps if row.step == 0]
    assert [(row.kind, row.completion) for row in first] == [("prefill", 0), ("fork", 1), ("fork", 2)]
    assert Counter(row.kind for row in story.steps) == {"prefill": 1, "fork": 2, "decode": 9}
    assert all(check.holds for check in story.checks)


def test_a_preempted_request_is_recomputed_and_all_still_agrees() -> None:
    prompts = [list(range(5, 65)), list(range(65, 125))]
    story = explain(*prompts, max_tokens=24, num_gpu_blocks_override=9, enable_prefix_caching=False)
    assert "recompute" in {row.kind for row in story.steps}
    assert all(check.holds for check in story.checks)


@pytest.mark.parametrize("model", ["gemma3_text", "qwen3_5_text"])
def test_windows_and_recurrent_states_are_told_too(model: str) -> None:
    story = explain(list(range(5, 85)), model=model, max_tokens=20)
    assert all(check.holds for check in story.checks)
    assert text_of(story)


def test_wide_blocks_are_drawn_sixteen_signs_wide() -> None:
    block = explain(list(range(5, 55)), max_tokens=1, block_size=64).steps[0].blocks[0]
    assert slot_bar(block, 64) == "▓" * 13 + "░" * 3


@pytest.mark.parametrize("name", ["steps.svg", "steps.png"])
def test_a_plot_is_written(name: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / name
    result = run_command("--prompt-token-ids", "5,6,7", "--plot", str(path))
    assert result.exit_code == 0
    assert re.search(rf"^{re.escape(str(path))}: \d+ steps$", result.stderr, re.MULTILINE)
    if path.suffix == ".svg":
        assert ET.parse(path).getroot().tag.endswith("svg")
    else:
        assert path.read_bytes().startswith(b"\x89PNG")


def test_the_same_run_gives_the_same_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    paths = [tmp_path / "a.svg", tmp_path / "b.svg"]
    for path in paths:
        run_command("--prompt-token-ids", "5,6,7", "--plot", str(path))
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_without_matplotlib_the_command_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hide(monkeypatch, "matplotlib")
    result = run_command("--prompt-token-ids", "5,6,7", "--plot", str(tmp_path / "a.svg"))
    assert (result.exit_code, "pip install 'octavo[views]'" in result.output) == (1, True)


def test_a_plot_of_another_format_is_refused_before_the_run(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    result = run_command("--prompt-token-ids", "5,6,7", "--plot", str(tmp_path / "a.doc"))
    assert result.exit_code == 1
    assert ".svg" in result.output


@pytest.mark.parametrize("arguments", [(), ("--prompt-token-ids", "5,six")], ids=["nothing", "words"])
def test_wrong_prompts_are_refused(arguments: tuple[str, ...]) -> None:
    assert run_command(*arguments).exit_code == 2


def hide(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """Behave as if a package were not installed."""
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [_Hidden(package), *sys.meta_path])


class _Hidden:
    """A finder that finds no such package."""

    def __init__(self, package: str) -> None:
        self._package = package

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        del path, target
        if name.partition(".")[0] == self._package:
            raise ModuleNotFoundError(f"No module named {name!r}", name=self._package)


def make_story(prompt: str) -> Walkthrough:
    """A prompt of single bytes, and one more byte as the answer."""
    prompt_ids = tuple(prompt.encode())
    row = StepRow(0, 0, 0, "prefill", prompt_ids, 33, 0, len(prompt_ids), ())
    story = RequestStory(prompt_ids, 0, 0, ((33,),), ("!",), ("length",))
    return Walkthrough("m", 16, (story,), (row,), (), {byte: bytes([byte]) for byte in range(256)})


def columns(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(sign) in "WF" else 1 for sign in text)


def test_characters_of_several_tokens_are_whole_where_all_of_them_are_there() -> None:
    story = make_story("你好")
    assert story.text(*story.requests[0].prompt_token_ids) == "你好"
    assert story.text(story.requests[0].prompt_token_ids[0]) == "\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize("prompt", ["你好,世界是", "世" * 60, "x" * 500, "e\N{COMBINING ACUTE ACCENT}" * 3], ids=len)
def test_columns_stay_under_each_other_in_any_script(prompt: str) -> None:
    lines = text_of(make_story(prompt)).splitlines()
    heading, rule, row = lines[lines.index("Step by step") + 1 :][:3]
    start = heading.index("in the KV cache")
    assert rule[start - 2 : start + 1] == "  ─"
    before = row[: row.rindex(f"{len(prompt.encode()):>3}  ")]
    assert columns(before) == start
    assert columns(row) <= columns(rule)


def test_a_long_text_shows_its_end_in_the_cache_column() -> None:
    text = text_of(make_story("a" * 100 + "the end"))
    assert "…" + "a" * 32 + "the end" in text
