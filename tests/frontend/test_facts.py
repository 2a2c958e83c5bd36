"""What engines say of themselves, and to those who make them in the wrong way."""

from __future__ import annotations

from typing import Any

import pytest
from async_helpers import make_async, run
from face_fakes import make_engine

from octavo import LLM, AsyncLLM, ConfigError, EngineArgs, EngineDeadError, LLMEngine
from octavo.frontend.model_config import ModelConfig


def test_every_face_has_the_facts_of_the_model() -> None:
    async def test() -> None:
        async with make_async() as (llm, _):
            facts = await llm.get_model_config()
            assert facts == ModelConfig("fake", "fake", max_model_len=512, vocab_size=300, hidden_size=4)
            assert facts is llm.model_config is llm.engine.model_config is LLM.from_engine(llm.engine).model_config
            assert (facts.get_vocab_size(), facts.get_hidden_size()) == (300, 4)

    run(test)


def test_a_dead_engine_says_why() -> None:
    async def test() -> None:
        async with make_async() as (llm, _):
            llm.close()
            assert isinstance(llm.dead_error, EngineDeadError)
            assert "was closed" in str(llm.dead_error)

    run(test)


@pytest.mark.parametrize("name", ["sleep", "wake_up"])
def test_sleeping_is_refused_with_the_way_out(name: str) -> None:
    async def test() -> None:
        async with make_async() as (llm, _):
            with pytest.raises(ConfigError, match=r"close\(\) the engine and start it again"):
                await getattr(llm, name)()
            assert not await llm.is_sleeping()

    run(test)
    with LLM.from_engine(make_engine()[0]) as llm, pytest.raises(ConfigError, match=r"close\(\) the engine"):
        getattr(llm, name)()


@pytest.mark.parametrize("cls", [AsyncLLM, LLMEngine], ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("given", ["smollm2-135m", EngineArgs("smollm2-135m")], ids=["name", "options"])
def test_an_engine_is_made_of_options_by_name(cls: Any, given: Any) -> None:
    with pytest.raises(TypeError, match=rf"use {cls.__name__}.from_engine_args\(EngineArgs\(model=...\)\)"):
        cls(given)


@pytest.mark.parametrize("cls", [LLM, AsyncLLM, LLMEngine], ids=lambda cls: cls.__name__)
def test_what_is_no_engine_args_is_refused(cls: Any) -> None:
    with pytest.raises(TypeError, match=r"engine_args must be EngineArgs\(model=...\), got 'smollm2-135m'"):
        cls.from_engine_args("smollm2-135m")


def test_options_without_a_model_say_so() -> None:
    with pytest.raises(TypeError, match=r"'model' is missing, as in EngineArgs\(model=...\)"):
        EngineArgs(max_num_seqs=2)  # type: ignore[call-arg]
