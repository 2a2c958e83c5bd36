"""The one place that constructs an engine: resolve, model, program, executor, capacity, manager, scheduler, core."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from octavo.cache_spec import num_attention_groups
from octavo.core.admission import AdmissionPolicy
from octavo.core.engine_core import EngineCore
from octavo.core.kv_cache_manager import KVCacheManager
from octavo.core.scheduler import Scheduler
from octavo.frontend.engine_metrics import EngineMetrics
from octavo.frontend.fingerprint import numeric_fingerprint
from octavo.frontend.length_advice import way_to_more_length
from octavo.frontend.llm_engine import EngineParts, LLMEngine
from octavo.frontend.machine import available_memory_bytes
from octavo.frontend.model_config import ModelConfig
from octavo.frontend.model_weights import load_model_weights
from octavo.frontend.resolve import ResolvedConfig, cache_bytes, load_tokenizer, make_program, resolve, scheduler_config
from octavo.grammar.compiler import GrammarCompiler
from octavo.native import kernels
from octavo.observe.event_log import EventLog
from octavo.observe.events import NULL_SINK, EventSink, EventTee
from octavo.observe.history import StepHistory
from octavo.program.native import NativeProgram
from octavo.runner.cache_memory import CacheMemory, plan_capacity
from octavo.runner.input_batch import InputBatch
from octavo.runner.local_executor import LocalExecutor

if TYPE_CHECKING:
    from octavo.config import EngineConfig, SchedulerConfig
    from octavo.core.executor import CacheCapacity
    from octavo.frontend.engine_snapshot import EngineObserver
    from octavo.grammar.matcher import GrammarMatcher
    from octavo.program.forward_batch import AllowedTokens
    from octavo.program.ops import Program
    from octavo.weights.store import WeightStore


@dataclass(frozen=True, slots=True)
class EnginePolicies:
    """Parts of the control plane that decide; an experiment may put others in their place."""

    admission: Callable[[SchedulerConfig, KVCacheManager], AdmissionPolicy] = AdmissionPolicy
    cache_manager: type[KVCacheManager] = KVCacheManager


@dataclass(frozen=True, slots=True)
class BuiltEngine:
    """An engine that runs, and the facts about it that costs and limits are worked out from."""

    engine: LLMEngine
    scheduler: Scheduler
    """The engine's own: for its thread only, which is also that of all events but refusals."""
    make_observer: Callable[[], EngineObserver]
    program: Program
    weight_bytes: Mapping[str, int]
    """What each weight of the program takes in memory, by name."""
    int8_weights: frozenset[str]
    """Matrices whose products are computed in 8-bit integers."""
    num_threads: int
    isa: str


_PRODUCTION = EnginePolicies()


def build_engine(config: EngineConfig) -> LLMEngine:
    """Load a model and start an engine for it.

    Raises: `ConfigError`, `ModelLoadError`, `NativeError`.
    """
    return build(config).engine


def build(
    config: EngineConfig, *, events: EventSink = NULL_SINK, policies: EnginePolicies = _PRODUCTION
) -> BuiltEngine:
    """Load a model and start an engine for it, with someone who listens.

    Args:
        events: hears what the engine decides.
        policies: who decides.

    Raises: `ConfigError`, `ModelLoadError`, `NativeError`.
    """
    resolved = resolve(config)
    model = resolved.model
    program = make_program(config, model.spec, resolved.longest)
    weights, packing = load_model_weights(config, resolved, program)
    tokenizer = load_tokenizer(config, model)
    data_plane = _data_plane(config, resolved, program, weights)
    program, scheduling, native = data_plane.program, data_plane.scheduling, data_plane.native
    metrics = EngineMetrics(scheduling.max_model_len, lambda: native.num_saturated)
    history = StepHistory(program.cache_groups[0].block_size, num_attention_groups(program.cache_groups))
    event_log = EventLog() if config.record_events else None
    sink = EventTee(metrics, history, *(sink for sink in (event_log, events) if sink is not None and sink.enabled))
    manager = policies.cache_manager(
        program.cache_groups,
        data_plane.executor.capacity(),
        enable_prefix_caching=scheduling.enable_prefix_caching,
        give_back=data_plane.executor.release_blocks,
        events=sink,
    )
    scheduler = Scheduler(scheduling, manager, admission=policies.admission(scheduling, manager), events=sink)
    ends = tokenizer.eos_token_ids
    grammars = GrammarCompiler(tokenizer, vocab_size=program.vocab_size, eos_token_ids=ends)

    def make_observer() -> EngineObserver:
        from octavo.frontend.engine_snapshot import EngineObserver  # for those who look; a start does without

        return EngineObserver(scheduler, history, program.cache_groups, scheduling)

    def masks() -> AllowedTokens | None:
        return grammars.filler.collect(cast("list[GrammarMatcher | None]", scheduler.open_constraints))

    packing.wait()
    engine = LLMEngine(
        EngineParts(
            core=EngineCore(scheduler, data_plane.executor, masks=masks),
            tokenizer=tokenizer,
            metrics=metrics,
            make_observer=make_observer,
            event_log=event_log,
            events=sink,
            default_sampling_params=model.default_sampling_params,
            vocab_size=program.vocab_size,
            hidden_size=program.hidden_size,
            embedding=model.embedding,
            eos_token_ids=ends,
            model_config=_model_config(config, program),
            max_model_len=scheduling.max_model_len,
            way_to_more_length=way_to_more_length(config, model, scheduling),
            max_logprobs=config.max_logprobs,
            grammars=grammars,
            seed=config.seed,
            weight_formats=weights.format_bytes,
            numeric_fingerprint=_fingerprint(config, resolved, program),
        )
    )
    return BuiltEngine(
        engine,
        scheduler,
        make_observer,
        program,
        weights.bytes_by_name(),
        weights.quantized_matrices() if config.activation_quantization else frozenset(),
        resolved.num_threads,
        str(kernels().isa),
    )


def _model_config(config: EngineConfig, program: Program) -> ModelConfig:
    return ModelConfig(
        config.model,
        config.tokenizer or config.model,
        max_model_len=program.max_model_len,
        vocab_size=program.vocab_size,
        hidden_size=program.hidden_size,
        quantization=config.quantization,
    )


def _fingerprint(config: EngineConfig, resolved: ResolvedConfig, program: Program) -> str:
    return numeric_fingerprint(
        isa=kernels().isa,
        checkpoint=resolved.model.checkpoint,
        spec=repr(resolved.model.spec),
        quantization=config.quantization,
        activation_quantization=config.activation_quantization,
        kv_cache_dtype=resolved.cache_dtype,
        rope=[(table.inv_freq, table.scale) for table in program.rope_tables],  # all that depends on max_model_len
        logprobs_mode=config.logprobs_mode,
        pooling_type=resolved.model.embedding.pooling_type,
        normalizes_embeddings=resolved.model.embedding.normalizes,
    )


@dataclass(frozen=True, slots=True)
class _DataPlane:
    """What computes, and what the control plane must know of it."""

    program: Program
    scheduling: SchedulerConfig
    native: NativeProgram
    executor: LocalExecutor


def _data_plane(config: EngineConfig, resolved: ResolvedConfig, program: Program, weights: WeightStore) -> _DataPlane:
    """Size the cache, and shorten the program to it if its length is "auto"."""
    available = available_memory_bytes()
    scheduling = scheduler_config(config, program.max_model_len)
    capacity = _capacity(config, program, available)
    if resolved.max_model_len is None:
        program, scheduling = _shortened(config, resolved, program, scheduling, capacity)
    # Address space for the most that the cache could be: what a step needs is known, and subtracted, only then.
    memory = CacheMemory(program.cache_groups, capacity.num_blocks)
    native = _native_program(config, resolved, program, scheduling, weights, memory)
    capacity = _capacity(config, program, available - native.peak_bytes)
    if resolved.max_model_len is None:
        shortened, scheduling = _shortened(config, resolved, program, scheduling, capacity)
        if shortened.max_model_len < program.max_model_len:
            native.close()
            program = shortened
            native = _native_program(config, resolved, program, scheduling, weights, memory)
    inputs = InputBatch(
        max_num_seqs=scheduling.max_num_seqs,
        max_model_len=scheduling.max_model_len,
        block_sizes=[None if group.kind == "state" else group.block_size for group in program.cache_groups],
        vocab_size=program.vocab_size,
        hidden_size=program.hidden_size,
    )
    return _DataPlane(program, scheduling, native, LocalExecutor(native, capacity, memory, inputs))


def _capacity(config: EngineConfig, program: Program, available: int) -> CacheCapacity:
    return plan_capacity(program.cache_groups, cache_bytes(config, available), config.num_gpu_blocks_override)


def _shortened(
    config: EngineConfig,
    resolved: ResolvedConfig,
    program: Program,
    scheduling: SchedulerConfig,
    capacity: CacheCapacity,
) -> tuple[Program, SchedulerConfig]:
    """Return the program, and its scheduling, for the longest request that the empty cache can hold, at most as long.

    One that is as long already is returned as it is.
    """
    manager = KVCacheManager(
        program.cache_groups, capacity, enable_prefix_caching=False, give_back=lambda _group, _blocks: None
    )
    length = max(1, AdmissionPolicy(scheduling, manager).max_request_tokens)
    if length == program.max_model_len:
        return program, scheduling
    return make_program(config, resolved.model.spec, length), scheduler_config(config, length)


def _native_program(
    config: EngineConfig,
    resolved: ResolvedConfig,
    program: Program,
    scheduling: SchedulerConfig,
    weights: WeightStore,
    memory: CacheMemory,
) -> NativeProgram:
    return NativeProgram(
        program,
        weights,
        cache_groups=program.cache_groups,
        pools=memory.buffers,
        max_num_tokens=scheduling.max_num_batched_tokens,
        max_num_seqs=scheduling.max_num_seqs,
        max_model_len=scheduling.max_model_len,
        num_threads=resolved.num_threads,
        activation_quantization=config.activation_quantization,
        logprobs_mode=config.logprobs_mode,
    )
